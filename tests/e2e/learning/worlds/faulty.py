"""Environments of a newcomer, each with one bug; a plug-in."""

import time
from typing import Any

import gymnasium
import numpy as np

from parlmesh.plugins import Plugin


class Faulty(gymnasium.Env[np.ndarray, np.int64]):
    def __init__(self, fault: str = "") -> None:
        self.fault, self.steps = fault, 0
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        if fault == "constructor":
            raise ValueError("no such map")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if self.fault == "reset":
            raise RuntimeError("the door is locked")
        return np.zeros(3 if self.fault == "wrong shape at first" else 2, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.fault == "at once" or (self.fault == "after 60 steps" and self.steps > 60):
            raise ValueError(f"no good after {self.steps} steps")
        if self.fault == "hangs":
            time.sleep(3600)
        if self.fault == "slow":
            time.sleep(10)
        if self.fault == "exits":
            raise SystemExit(3)
        if self.fault == "reward":
            return np.zeros(2, np.float32), np.ones(1), False, False, {}  # type: ignore[return-value]
        seen = np.zeros(3 if self.fault == "wrong shape" else 2, np.float32)
        return seen, float("nan") if self.fault == "nan" else 1.0, self.steps % 20 == 0, False, {}


plugin = Plugin(environments={"Faulty-v0": Faulty})
