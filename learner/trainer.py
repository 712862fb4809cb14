"""PPO updates on batches of trajectories: network, optimiser and random state in one thing that can be saved whole."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parlmesh.algorithms.gae import gae
from parlmesh.algorithms.ppo import PpoLoss, ppo_loss
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.policies.network import ActorCritic
from parlmesh.types import (
    ACTION,
    LOG_PROB,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    Array,
    Fragment,
)

from .config import PpoConfig


@dataclasses.dataclass(frozen=True, slots=True)
class Update:
    """What one update did."""

    steps: int
    metrics: Mapping[str, float]
    # False when a loss or gradient was not finite; the network is then as it was before.
    applied: bool


@dataclasses.dataclass(frozen=True, slots=True)
class _Batch:
    """The valid steps of a batch, flattened to [B, ...]."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor


class PpoTrainer:
    """Owns a policy in training. Not thread-safe: one thread updates, others read what it published."""

    def __init__(self, spec: PolicySpec, config: PpoConfig, seed: int) -> None:
        self._spec = spec
        self._config = config
        self._generator = torch.Generator().manual_seed(seed)
        self._network = ActorCritic(spec, self._generator)
        self._optimiser = torch.optim.Adam(self._network.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)

    def update(self, fragments: Sequence[Fragment], progress: float) -> Update:
        """Some epochs of minibatches over whole fragments; `progress` in [0, 1] is the used share of the step budget.

        An epoch is the last one when its mean KL exceeds `target_kl`. A value that is not finite undoes the update.
        """
        batch = self._prepare(fragments)
        steps = len(batch.actions)
        annealed = 1.0 - (1.0 - self._config.final_learning_rate_fraction) * min(max(progress, 0.0), 1.0)
        for group in self._optimiser.param_groups:
            group["lr"] = self._config.learning_rate * annealed
        before = self._state()
        losses: list[PpoLoss] = []
        norms: list[Tensor] = []
        epochs = 0
        for _ in range(self._config.epochs):
            epochs += 1
            order = torch.randperm(steps, generator=self._generator)
            first = len(losses)
            for indices in order.split(_even_minibatch(steps, self._config.minibatch_steps)):
                loss, norm = self._step(batch, indices)
                losses.append(loss)
                norms.append(norm)
            if not _finite(losses[first:], norms[first:]):
                self._restore(before)
                return Update(steps, {}, applied=False)
            if torch.stack([loss.approx_kl for loss in losses[first:]]).mean() > self._config.target_kl:
                break
        return Update(steps, self._describe(batch, losses, norms, epochs, annealed), applied=True)

    def policy_blob(self) -> bytes:
        """The policy as actors read it."""
        return pack_policy(self._spec, self._network.policy_weights())

    def tensors(self) -> dict[str, Array]:
        """Everything that decides the next update: weights, Adam's moments, the random state."""
        found = {f"network.{name}": value.numpy().copy() for name, value in self._network.state_dict().items()}
        for index, state in self._optimiser.state_dict()["state"].items():
            for name, value in state.items():
                found[f"optimiser.{index}.{name}"] = np.array(value.numpy())
        found["generator"] = self._generator.get_state().numpy().copy()
        return found

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        weights = {
            name.removeprefix("network."): torch.from_numpy(np.array(value))
            for name, value in tensors.items()
            if name.startswith("network.")
        }
        self._network.load_state_dict(weights)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimiser."):
                _, index, field = name.split(".")
                state.setdefault(int(index), {})[field] = torch.from_numpy(np.array(value))
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": state, "param_groups": groups})
        self._generator.set_state(torch.from_numpy(np.array(tensors["generator"])))

    def _prepare(self, fragments: Sequence[Fragment]) -> _Batch:
        columns = {name: _join(fragments, name) for name in fragments[0].columns}
        observations = columns[OBSERVATION].astype(np.float32, copy=False)
        rows, width = observations.shape[:2]
        flat = torch.from_numpy(observations.reshape(rows * width, self._spec.observation_size))
        with torch.inference_mode():
            values = self._network.values(flat).numpy().reshape(rows, width)
        advantages, returns = gae(
            columns[REWARD],
            values,
            columns[TERMINATED],
            columns[TRUNCATED],
            discount=self._config.discount,
            smoothing=self._config.smoothing,
        )
        valid = np.flatnonzero(columns[VALID])
        chosen = advantages.reshape(-1)[valid]
        if self._config.normalise_advantages and len(chosen) > 1:
            chosen = (chosen - chosen.mean()) / (chosen.std() + 1e-8)
        return _Batch(
            observations=flat[torch.from_numpy(valid)],
            actions=torch.from_numpy(columns[ACTION].reshape(-1)[valid]),
            log_probs=torch.from_numpy(columns[LOG_PROB].reshape(-1)[valid]),
            advantages=torch.from_numpy(chosen),
            returns=torch.from_numpy(returns.reshape(-1)[valid]),
        )

    def _step(self, batch: _Batch, indices: Tensor) -> tuple[PpoLoss, Tensor]:
        logits, values = self._network(batch.observations[indices])
        loss = ppo_loss(
            logits,
            values,
            batch.actions[indices],
            batch.log_probs[indices],
            batch.advantages[indices],
            batch.returns[indices],
            clip=self._config.clip,
            value_coefficient=self._config.value_coefficient,
            entropy_coefficient=self._config.entropy_coefficient,
        )
        self._optimiser.zero_grad(set_to_none=True)
        loss.total.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._network.parameters(), self._config.gradient_norm)
        self._optimiser.step()
        return loss, norm

    def _describe(
        self, batch: _Batch, losses: Sequence[PpoLoss], norms: Sequence[Tensor], epochs: int, annealed: float
    ) -> dict[str, float]:
        means = torch.stack([torch.stack(loss).detach() for loss in losses]).mean(dim=0).tolist()
        named = dict(zip(PpoLoss._fields, means, strict=True))
        return {
            "loss/total": named["total"],
            "loss/policy": named["policy"],
            "loss/value": named["value"],
            "policy/entropy": named["entropy"],
            "policy/approx_kl": named["approx_kl"],
            "policy/clip_fraction": named["clip_fraction"],
            "update/epochs": float(epochs),
            "update/gradient_norm": float(torch.stack(list(norms)).mean()),
            "update/learning_rate": self._config.learning_rate * annealed,
            "value/mean_return": float(batch.returns.mean()),
        }

    def _state(self) -> dict[str, Any]:
        return {
            "network": [parameter.detach().clone() for parameter in self._network.parameters()],
            "moments": {
                parameter: {name: value.clone() for name, value in state.items()}
                for parameter, state in self._optimiser.state.items()
            },
        }

    def _restore(self, before: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self._network.parameters(), before["network"], strict=True):
                parameter.copy_(value)
        self._optimiser.state.clear()
        self._optimiser.state.update(before["moments"])


def _join(fragments: Sequence[Fragment], name: str) -> Array:
    if len(fragments) == 1:
        return fragments[0].columns[name]
    return np.concatenate([fragment.columns[name] for fragment in fragments], axis=1)


def _even_minibatch(steps: int, wanted: int) -> int:
    """The minibatch size next to `wanted` that leaves no small remainder."""
    return math.ceil(steps / max(1, round(steps / wanted)))


def _finite(losses: Sequence[PpoLoss], norms: Sequence[Tensor]) -> bool:
    return bool(torch.isfinite(torch.stack([loss.total.detach() for loss in losses] + list(norms))).all())
