"""Converts an environment's observation to a network's input: one-hot rows, flattening, normalisation."""

from collections.abc import Mapping

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .custom_networks import takes_images
from .normaliser import LARGEST_FEATURE
from .policy_spec import PolicySpec


class Features:
    """The statistics are part of a policy version, so that actors and learner see the same numbers."""

    def __init__(self, spec: PolicySpec, weights: Mapping[str, Array]) -> None:
        self._spec = spec
        one_hot = spec.observation_states and spec.network != "tabular"
        self._one_hot = np.eye(spec.observation_states, dtype=np.float32) if one_hot else None
        self._mean = _statistics(weights, "normaliser.mean", spec) if spec.normalised else None
        self._scale = _statistics(weights, "normaliser.scale", spec) if spec.normalised else None

    def __call__(self, observation: Array) -> Array:
        """[B, ...] to float32 [B, size]; convolutions take [B, C, H, W], a table takes the states unchanged.

        Images of bytes stay bytes: torch networks scale them to 0..1 when they use them.
        """
        if self._one_hot is not None:
            return self._one_hot[observation]
        if self._spec.network == "tabular":
            return observation
        if takes_images(self._spec.network):
            return observation if observation.dtype == np.uint8 else observation.astype(np.float32, copy=False)
        flat = observation.reshape(len(observation), self._spec.observation_size).astype(np.float32, copy=False)
        if self._mean is None or self._scale is None:
            return flat
        return np.clip((flat - self._mean) * self._scale, -LARGEST_FEATURE, LARGEST_FEATURE)


def _statistics(weights: Mapping[str, Array], name: str, spec: PolicySpec) -> Array:
    if name not in weights or weights[name].shape != (spec.observation_size,):
        raise InvalidInput(f"policy has no tensor {name} of {spec.observation_size} numbers", tensor=name)
    return weights[name]
