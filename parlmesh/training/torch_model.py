"""A policy in training under torch's autograd. Imported only when the configuration asks for torch."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from parlmesh.action_masks import unpack_mask
from parlmesh.algorithms.imitation_torch import imitation_loss
from parlmesh.algorithms.ppo import PpoTerms
from parlmesh.algorithms.ppo_torch import ppo_loss
from parlmesh.policies import PolicySpec
from parlmesh.policies.distributions import MASKED
from parlmesh.policies.numpy_networks import DenseActorCritic
from parlmesh.policies.torch_likelihoods import WIDE, allowed_likelihood
from parlmesh.policies.torch_networks import ActorCritic
from parlmesh.policies.torch_threads import choose_threads
from parlmesh.types import Array

from .numpy_model import Memory, Minibatch, Steps
from .settings.ppo import PpoConfig
from .shared_step import Share, share_gradients
from .subnormals import flushed_subnormals
from .torch_device import CPU

# Bytes of features per pass without gradients: a whole batch of images at once would need gigabytes.
_PART_BYTES = 8 * 1024 * 1024


class TorchModel:
    """Any network. A perceptron starts from the same weights as the numpy model of the same seed."""

    share: Share | None = None
    placed = False

    def __init__(
        self, spec: PolicySpec, config: PpoConfig, rng: np.random.Generator, device: torch.device = CPU
    ) -> None:
        choose_threads(config.torch_threads or 1)
        self._device = device
        self._config = config
        self._wide = spec.action.kind == "discrete" and spec.action.outputs >= WIDE
        if spec.network == "mlp":
            self._network = ActorCritic(spec)
            dense = DenseActorCritic(spec, rng, initial_log_std=config.initial_log_std)
            self._network.load_named(dense.named_weights())
        else:
            # The process's global generator is unchanged.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(rng.integers(2**31)))
                self._network = ActorCritic(spec, initial_log_std=config.initial_log_std)
        self._network.to(device)
        self._optimiser = torch.optim.Adam(
            self._network.parameters(), lr=config.learning_rate, eps=config.adam_epsilon, fused=True
        )

    def values(self, features: Array, memory: Memory | None) -> Array:
        """Values [T, E] of features [T, E, ...]."""
        with torch.inference_mode():
            if memory is not None:
                _, values = self._unroll(features, memory)
                found: Array = values.cpu().numpy()
                return found
            return self._flat_values(features).cpu().numpy().reshape(features.shape[:2])

    def judged(self, features: Array, memory: Memory | None, batch: Minibatch) -> tuple[Array, Array]:
        """Values [T + 1, E], and log-probabilities [T, E] of actions [T, E, ...], from one pass."""
        grid = batch.log_probs.shape
        # Features are large and not needed here, so log-probabilities replace them.
        flat = batch._replace(features=batch.log_probs).rows(np.ones(grid, np.bool_))
        with torch.inference_mode():
            if memory is not None:
                outputs, values = self._unroll(features, memory)
                log_probs, _ = self._chosen(outputs.flatten(0, 1)[: len(flat.actions)], flat)
            else:
                log_probs, values = self._judged_in_parts(features, flat)
        return values.cpu().numpy().reshape(features.shape[:2]), log_probs.cpu().numpy().reshape(grid)

    def _judged_in_parts(self, features: Array, flat: Minibatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities and values; outputs are not kept for a whole batch, since a step may have thousands."""
        rows = features.reshape(-1, *features.shape[2:])
        size, count = _part_rows(rows), len(flat.actions)
        log_probs, values = [], []
        for start in range(0, len(rows), size):
            outputs, found = self._network(self._tensor(rows[start : start + size]))
            values.append(found)
            if start < count:
                part = flat.rows(slice(start, min(start + size, count)))
                log_probs.append(self._chosen(outputs[: len(part.actions)], part)[0])
        return torch.cat(log_probs), torch.cat(values)

    def step(self, minibatch: Minibatch, steps: Steps) -> tuple[PpoTerms, float]:
        """One gradient step by torch's fused Adam."""
        loss, terms = (
            self._loss(minibatch, steps) if minibatch.target_chances is None else self._imitation(minibatch, steps)
        )
        for group in self._optimiser.param_groups:
            group["lr"] = steps.learning_rate
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.share is not None:
            terms = PpoTerms(*share_gradients(list(self._network.parameters()), self.share, terms))
        norm = nn.utils.clip_grad_norm_(self._network.parameters(), self._config.gradient_norm)
        with flushed_subnormals():
            self._optimiser.step()
        return terms, float(norm)

    def _loss(self, minibatch: Minibatch, steps: Steps) -> tuple[Tensor, PpoTerms]:
        log_prob, entropy, values, minibatch = self._likelihood(minibatch)
        return ppo_loss(
            log_prob,
            entropy,
            values,
            self._tensor(minibatch.log_probs),
            self._tensor(minibatch.advantages),
            self._tensor(minibatch.returns),
            clip=steps.clip,
            value_coefficient=self._config.value_coefficient,
            entropy_coefficient=steps.entropy_coefficient,
            old_values=None if minibatch.values is None else self._tensor(minibatch.values),
            value_clip=self._config.value_clip,
            objective=self._config.objective,
            log_ratio_penalty=self._config.log_ratio_penalty,
        )

    def _imitation(self, minibatch: Minibatch, steps: Steps) -> tuple[Tensor, PpoTerms]:
        outputs, values, minibatch = self._forward(minibatch)
        assert minibatch.target_actions is not None
        assert minibatch.target_chances is not None
        return imitation_loss(
            torch.log_softmax(self._allowed(outputs, minibatch), dim=1),
            values,
            self._tensor(minibatch.target_actions),
            self._tensor(minibatch.target_chances),
            self._tensor(minibatch.returns),
            value_coefficient=self._config.value_coefficient,
            entropy_coefficient=steps.entropy_coefficient,
        )

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
        return *self._chosen(outputs, minibatch), values, minibatch

    def _chosen(self, outputs: Tensor, minibatch: Minibatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [B] of the actions."""
        if minibatch.masks is not None and self._wide:
            allowed = unpack_mask(minibatch.masks, outputs.shape[1])
            return allowed_likelihood(outputs, allowed, self._tensor(minibatch.actions))
        return self._network.likelihood(self._allowed(outputs, minibatch), self._tensor(minibatch.actions))

    def _allowed(self, outputs: Tensor, minibatch: Minibatch) -> Tensor:
        """Outputs [B, outputs], with forbidden ones masked."""
        if minibatch.masks is None:
            return outputs
        allowed = self._tensor(unpack_mask(minibatch.masks, outputs.shape[1]))
        return torch.where(allowed, outputs, float(MASKED))

    def _flat_values(self, features: Array) -> Tensor:
        """Values [T·E] of features [T, E, ...], for networks without memory."""
        flat = features.reshape(-1, *features.shape[2:])
        return torch.cat([self._network(self._tensor(part))[1] for part in _parts(flat)])

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
        """The array as a tensor; on the CPU, a view of it."""
        return torch.from_numpy(array).to(self._device)


def _part_rows(features: Array) -> int:
    """Number of rows in a part."""
    return max(1, _PART_BYTES // (4 * math.prod(features.shape[1:])))


def _parts(features: Array) -> Iterator[Array]:
    size = _part_rows(features)
    return (features[start : start + size] for start in range(0, len(features), size))
