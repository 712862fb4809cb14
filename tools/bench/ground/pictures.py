"""A world of pictures that costs next to nothing to step, so that a library's work on images is measured."""

# mypy: ignore-errors
# Also imported in a peer's venv.

import gymnasium
import numpy as np

EPISODE_STEPS = 200


class Pictures(gymnasium.Env):
    """84 x 84 x 4 bytes, channels first; the first corner says which of two actions pays."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self._pictures = np.random.default_rng(0).integers(0, 256, (64, 4, 84, 84), np.uint8)
        self._done = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._done = 0
        return self._look(), {}

    def step(self, action):
        reward = float(action == (self._shown[0, 0, 0] > 127))
        self._done += 1
        return self._look(), reward, False, self._done >= EPISODE_STEPS, {}

    def _look(self):
        self._shown = self._pictures[self.np_random.integers(64)]
        return self._shown


gymnasium.register("parlmesh-bench/Pictures-v0", Pictures)
