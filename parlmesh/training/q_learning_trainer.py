"""Q-learning on a table: each fragment is used once, last steps first."""

from collections.abc import Mapping, Sequence

import numpy as np

from parlmesh.algorithms.q_learning import q_learning_update
from parlmesh.algorithms.schedules import scheduled
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.types import ACTION, OBSERVATION, REWARD, TERMINATED, VALID, Array, Fragment

from .settings.q_learning import QLearningConfig
from .trainer import Update


class QLearningTrainer:
    """Owns a table in training. Not thread-safe: one thread updates, others read the published policies."""

    def __init__(self, spec: PolicySpec, config: QLearningConfig) -> None:
        self._spec = spec
        self._config = config
        self._table = np.full((spec.observation_states, spec.action.outputs), config.initial_value)
        self._epsilon = config.exploration.start

    def update(self, fragments: Sequence[Fragment], progress: float) -> Update:
        """One pass over whole fragments; `progress` in [0, 1] is the used share of the step budget.

        Goes backwards in time, so that a reward reaches all the steps that led to it. A value that is not finite undoes
        the update.
        """
        config = self._config
        step_size = scheduled(progress, config.step_size, config.final_step_size, shape="exponential")
        before, errors = self._table.copy(), []
        for fragment in fragments:
            errors += self._learn(fragment.columns, step_size)
        steps, error = sum(map(len, errors)), float(sum(np.abs(part).sum() for part in errors))
        if not np.isfinite(self._table).all():
            self._table = before
            return Update(steps, {}, applied=False)
        self._epsilon = config.exploration.epsilon(progress)
        metrics = {
            "value/error": error / max(steps, 1),
            "value/mean": float(self._table.max(axis=1).mean()),
            "policy/epsilon": self._epsilon,
            "update/learning_rate": step_size,
        }
        return Update(steps, metrics, applied=True)

    def policy_blob(self) -> bytes:
        """The policy as actors read it."""
        epsilon = np.array([self._epsilon], np.float32)
        return pack_policy(self._spec, {"policy.table": self._table.astype(np.float32), "policy.epsilon": epsilon})

    def tensors(self) -> dict[str, Array]:
        """Everything that decides the next update."""
        return {"table": self._table.copy(), "epsilon": np.array([self._epsilon])}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        self._table[...] = tensors["table"]
        self._epsilon = float(tensors["epsilon"][0])

    def _learn(self, columns: Mapping[str, Array], step_size: float) -> list[Array]:
        """Learns from one fragment; returns the errors of each time step."""
        states, valid = columns[OBSERVATION], columns[VALID]
        errors = []
        for time in range(len(valid) - 1, -1, -1):
            chosen = valid[time]
            errors.append(
                q_learning_update(
                    self._table,
                    states[time][chosen],
                    columns[ACTION][time][chosen],
                    columns[REWARD][time][chosen],
                    states[time + 1][chosen],
                    columns[TERMINATED][time][chosen],
                    step_size=step_size,
                    discount=self._config.discount,
                )
            )
        return errors
