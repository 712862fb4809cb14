"""A policy in training under torch's autograd. Imported only when the configuration asks for torch."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from parlmesh.algorithms.ppo import PpoTerms
from parlmesh.algorithms.ppo_torch import ppo_loss
from parlmesh.policies import PolicySpec
from parlmesh.policies.dense import DenseActorCritic
from parlmesh.policies.distributions import MASKED
from parlmesh.policies.network import ActorCritic
from parlmesh.types import Array

from .devices import CPU
from .model import Memory, Minibatch
from .ppo_config import PpoConfig


class TorchModel:
    """Any network. A perceptron starts from the same weights as the numpy model of the same seed."""

    def __init__(
        self, spec: PolicySpec, config: PpoConfig, rng: np.random.Generator, device: torch.device = CPU
    ) -> None:
        torch.set_num_threads(config.torch_threads)
        self._device = device
        self._config = config
        if spec.network == "mlp":
            self._network = ActorCritic(spec)
            dense = DenseActorCritic(spec, rng, initial_log_std=config.initial_log_std)
            self._network.load_named(dense.named_weights())
        else:
            # The process's global generator is left as it was.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(rng.integers(2**31)))
                self._network = ActorCritic(spec, initial_log_std=config.initial_log_std)
        self._network.to(device)
        self._optimiser = torch.optim.Adam(self._network.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)

    def values(self, features: Array, memory: Memory | None) -> Array:
        """Values [T, E] of features [T, E, ...]."""
        with torch.inference_mode():
            if memory is not None:
                _, values = self._unroll(features, memory)
                found: Array = values.cpu().numpy()
                return found
            rows, width = features.shape[:2]
            _, values = self._network(self._tensor(features.reshape(rows * width, *features.shape[2:])))
            found = values.cpu().numpy().reshape(rows, width)
            return found

    def log_probs(self, batch: Minibatch) -> Array:
        """Log-probabilities [T, E] of actions [T, E, ...]."""
        everything = np.ones(batch.log_probs.shape, np.bool_)
        whole = batch.rows(everything) if batch.memory is None else batch._replace(valid=everything)
        with torch.inference_mode():
            log_prob, _, _, _ = self._likelihood(whole)
        found: Array = log_prob.cpu().numpy().reshape(everything.shape)
        return found

    def step(self, minibatch: Minibatch, learning_rate: float) -> tuple[PpoTerms, float]:
        """One gradient step by torch's fused Adam."""
        log_prob, entropy, values, minibatch = self._likelihood(minibatch)
        loss, terms = ppo_loss(
            log_prob,
            entropy,
            values,
            self._tensor(minibatch.log_probs),
            self._tensor(minibatch.advantages),
            self._tensor(minibatch.returns),
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
        """A copy of everything but the value head."""
        named = self._network.named_weights()
        return {name: weight for name, weight in named.items() if not name.startswith("value.")}

    def tensors(self) -> dict[str, Array]:
        """Weights and Adam's state."""
        found = {f"network.{name}": value.cpu().numpy().copy() for name, value in self._network.state_dict().items()}
        for index, state in self._optimiser.state_dict()["state"].items():
            for name, value in state.items():
                found[f"adam.{index}.{name}"] = np.array(value.cpu().numpy())
        return found

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        weights: dict[str, Tensor] = {}
        state: dict[int, dict[str, Tensor]] = {}
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

    def _likelihood(self, minibatch: Minibatch) -> tuple[Tensor, Tensor, Tensor, Minibatch]:
        """Log-probabilities, entropies and values [B] of the steps that count, and their columns."""
        outputs, values, minibatch = self._forward(minibatch)
        if minibatch.masks is not None:
            outputs = torch.where(self._tensor(minibatch.masks), outputs, float(MASKED))
        return *self._network.likelihood(outputs, self._tensor(minibatch.actions)), values, minibatch

    def _forward(self, minibatch: Minibatch) -> tuple[Tensor, Tensor, Minibatch]:
        """Outputs [B, outputs] and values [B] of the steps that count, and their columns."""
        if minibatch.memory is None:
            outputs, values = self._network(self._tensor(minibatch.features))
            return outputs, values, minibatch
        assert minibatch.valid is not None
        outputs, values = self._unroll(minibatch.features, minibatch.memory)
        valid = self._tensor(minibatch.valid)
        return outputs[valid], values[valid], minibatch.rows(minibatch.valid)

    def _unroll(self, features: Array, memory: Memory) -> tuple[Tensor, Tensor]:
        return self._network.unroll(self._tensor(features), self._tensor(memory.starts), self._tensor(memory.state))

    def _tensor(self, array: Array) -> Tensor:
        """On the CPU a view of the array."""
        return torch.from_numpy(array).to(self._device)
