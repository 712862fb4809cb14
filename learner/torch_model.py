"""A policy in training under torch's autograd. Imported only when the configuration asks for torch."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from parlmesh.algorithms.ppo import PpoTerms
from parlmesh.algorithms.ppo_torch import ppo_loss
from parlmesh.policies import PolicySpec
from parlmesh.policies.dense import DenseActorCritic
from parlmesh.policies.network import ActorCritic
from parlmesh.types import Array

from .config import PpoConfig
from .model import Minibatch


class TorchModel:
    """Starts from the same weights as the numpy model of the same seed."""

    def __init__(self, spec: PolicySpec, config: PpoConfig, rng: np.random.Generator) -> None:
        torch.set_num_threads(config.torch_threads)
        self._config = config
        self._network = ActorCritic(spec)
        weights = DenseActorCritic(spec, rng).named_weights()
        self._network.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})
        self._optimiser = torch.optim.Adam(self._network.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)

    def values(self, observations: Array) -> Array:
        """Values [B] of observations [B, size]."""
        with torch.inference_mode():
            values: Array = self._network.values(torch.from_numpy(observations)).numpy()
        return values

    def step(self, minibatch: Minibatch, learning_rate: float) -> tuple[PpoTerms, float]:
        """One gradient step by torch's fused Adam."""
        observations, *columns = (torch.from_numpy(column) for column in minibatch)
        loss, terms = ppo_loss(
            *self._network(observations),
            *columns,
            clip=self._config.clip,
            value_coefficient=self._config.value_coefficient,
            entropy_coefficient=self._config.entropy_coefficient,
        )
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._network.parameters(), self._config.gradient_norm)
        self._optimiser.step()
        return terms, float(norm)

    def policy_weights(self) -> dict[str, Array]:
        """A copy of the policy's part."""
        return self._network.policy_weights()

    def tensors(self) -> dict[str, Array]:
        """Weights and Adam's state."""
        found = {f"network.{name}": value.numpy().copy() for name, value in self._network.state_dict().items()}
        for index, state in self._optimiser.state_dict()["state"].items():
            for name, value in state.items():
                found[f"adam.{index}.{name}"] = np.array(value.numpy())
        return found

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        weights: dict[str, torch.Tensor] = {}
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in tensors.items():
            tensor = torch.from_numpy(np.array(value))
            if name.startswith("network."):
                weights[name.removeprefix("network.")] = tensor
            elif name.startswith("adam."):
                _, index, field = name.split(".")
                state.setdefault(int(index), {})[field] = tensor
        self._network.load_state_dict(weights)
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": state, "param_groups": groups})
