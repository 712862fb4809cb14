"""Chooses actions with torch, for networks that would be slow in numpy."""

from collections.abc import Mapping

import numpy as np
import torch

from parlmesh.types import Array

from .numpy_acting import Network, NumpyPolicy
from .policy_spec import PolicySpec
from .torch_networks import ActorCritic
from .torch_threads import use_one_thread


class TorchPolicy(NumpyPolicy):
    """Only the network differs: features, distributions and masks are the same code."""

    def _build(self, spec: PolicySpec, weights: Mapping[str, Array]) -> Network:
        use_one_thread()
        network = self._torch = ActorCritic(spec)
        # A blob holds only the policy's weights; this copy's value head is not used.
        network.load_named({**network.named_weights(), **weights})
        network.eval()

        def run(features: Array, _: Array | None) -> tuple[Array, Array | None]:
            with torch.inference_mode():
                outputs, _ = network(torch.from_numpy(np.ascontiguousarray(features)))
            return outputs.numpy(), None

        return run


class JudgingPolicy(TorchPolicy):
    """A policy with a plug-in's network, whose values travel with the policy."""

    def judged(self, observation: Array) -> tuple[Array, Array]:
        """Outputs [N, outputs] and values [N]."""
        with torch.inference_mode():
            outputs, values = self._torch(torch.from_numpy(np.ascontiguousarray(self._features(observation))))
        return outputs.numpy(), values.numpy()
