"""An environment: a corridor whose end is to the right.

parlmesh up --plugin examples/plugins/corridor.py:plugin --environment Corridor-v0 --goal 0.9
"""

from typing import Any

import gymnasium
import numpy as np

from parlmesh.plugins import Plugin


class Corridor(gymnasium.Env[np.ndarray, np.int64]):
    """Every step costs a little; reaching the end earns 1."""

    def __init__(self, length: int = 8) -> None:
        self._length, self._place = length, 0
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = 0
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._place = max(0, self._place + (1 if action == 1 else -1))
        done = self._place >= self._length
        return self._seen(), 1.0 if done else -0.01, done, False, {}

    def _seen(self) -> np.ndarray:
        return np.array([self._place / self._length], np.float32)


plugin = Plugin(environments={"Corridor-v0": {"entry_point": Corridor, "max_episode_steps": 40}})
