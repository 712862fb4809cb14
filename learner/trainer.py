"""PPO updates on batches of trajectories: from columns to minibatches, with all state that decides the next one."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from parlmesh.algorithms.gae import gae
from parlmesh.algorithms.ppo import PpoTerms
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.types import ACTION, LOG_PROB, OBSERVATION, REWARD, TERMINATED, TRUNCATED, VALID, Array, Fragment

from .config import PpoConfig
from .model import Minibatch, Model


@dataclasses.dataclass(frozen=True, slots=True)
class Update:
    """What one update did."""

    steps: int
    metrics: Mapping[str, float]
    # False when a loss or gradient was not finite; the model is then as it was before.
    applied: bool


class PpoTrainer:
    """Owns a policy in training. Not thread-safe: one thread updates, others read what it published."""

    def __init__(self, spec: PolicySpec, config: PpoConfig, model: Model, rng: np.random.Generator) -> None:
        self._spec = spec
        self._config = config
        self._model = model
        self._rng = rng

    def update(self, fragments: Sequence[Fragment], progress: float) -> Update:
        """Some epochs of minibatches over whole fragments; `progress` in [0, 1] is the used share of the step budget.

        An epoch is the last when its mean KL exceeds `target_kl`. A value that is not finite undoes the update.
        """
        batch = self._prepare(fragments)
        steps = len(batch.actions)
        remaining = 1.0 - min(max(progress, 0.0), 1.0)
        fraction = self._config.final_learning_rate_fraction
        learning_rate = self._config.learning_rate * (fraction + (1.0 - fraction) * remaining)
        size = _even_minibatch(steps, self._config.minibatch_steps)
        before = self.tensors()
        terms: list[PpoTerms] = []
        norms: list[float] = []
        epochs = 0
        for _ in range(self._config.epochs):
            epochs += 1
            order = self._rng.permutation(steps)
            shuffled = Minibatch(*(column[order] for column in batch))
            first = len(terms)
            for start in range(0, steps, size):
                minibatch = Minibatch(*(column[start : start + size] for column in shuffled))
                term, norm = self._model.step(minibatch, learning_rate)
                terms.append(term)
                norms.append(norm)
            if not all(math.isfinite(value) for value in [*norms[first:], *(term.total for term in terms[first:])]):
                self.restore(before)
                return Update(steps, {}, applied=False)
            if sum(term.approx_kl for term in terms[first:]) > self._config.target_kl * (len(terms) - first):
                break
        named = dict(zip(PpoTerms._fields, np.mean(terms, axis=0).tolist(), strict=True))
        metrics = {
            "loss/total": named["total"],
            "loss/policy": named["policy"],
            "loss/value": named["value"],
            "policy/entropy": named["entropy"],
            "policy/approx_kl": named["approx_kl"],
            "policy/clip_fraction": named["clip_fraction"],
            "update/epochs": float(epochs),
            "update/gradient_norm": float(np.mean(norms)),
            "update/learning_rate": learning_rate,
            "value/mean_return": float(batch.returns.mean()),
        }
        return Update(steps, metrics, applied=True)

    def policy_blob(self) -> bytes:
        """The policy as actors read it."""
        return pack_policy(self._spec, self._model.policy_weights())

    def tensors(self) -> dict[str, Array]:
        """Everything that decides the next update: the model, its optimiser, the random state."""
        state = self._rng.bit_generator.state["state"]
        words = [state["state"], state["inc"]]
        packed = b"".join(int(word).to_bytes(16, "little") for word in words)
        return {**self._model.tensors(), "rng": np.frombuffer(packed, np.uint8)}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        self._model.restore(tensors)
        packed = tensors["rng"].tobytes()
        state = dict(self._rng.bit_generator.state)
        state["state"] = {
            "state": int.from_bytes(packed[:16], "little"),
            "inc": int.from_bytes(packed[16:32], "little"),
        }
        # A permutation draws whole 64-bit words; a left-over half must not survive the restore.
        state["has_uint32"], state["uinteger"] = 0, 0
        self._rng.bit_generator.state = state

    def _prepare(self, fragments: Sequence[Fragment]) -> Minibatch:
        columns = {name: _join(fragments, name) for name in fragments[0].columns}
        observations = columns[OBSERVATION].astype(np.float32, copy=False)
        rows, width = observations.shape[:2]
        flat = observations.reshape(rows * width, self._spec.observation_size)
        advantages, returns = gae(
            columns[REWARD],
            self._model.values(flat).reshape(rows, width),
            columns[TERMINATED],
            columns[TRUNCATED],
            discount=self._config.discount,
            smoothing=self._config.smoothing,
        )
        valid = np.flatnonzero(columns[VALID])
        chosen = advantages.reshape(-1)[valid]
        if self._config.normalise_advantages and len(chosen) > 1:
            chosen = (chosen - chosen.mean()) / (chosen.std() + 1e-8)
        return Minibatch(
            observations=flat[valid],
            actions=columns[ACTION].reshape(-1)[valid],
            log_probs=columns[LOG_PROB].reshape(-1)[valid],
            advantages=chosen,
            returns=returns.reshape(-1)[valid],
        )


def _join(fragments: Sequence[Fragment], name: str) -> Array:
    if len(fragments) == 1:
        return fragments[0].columns[name]
    return np.concatenate([fragment.columns[name] for fragment in fragments], axis=1)


def _even_minibatch(steps: int, wanted: int) -> int:
    """The minibatch size next to `wanted` that leaves no small remainder."""
    return math.ceil(steps / max(1, round(steps / wanted)))
