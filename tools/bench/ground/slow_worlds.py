"""Worlds whose steps take time: one computes, the other waits as if for a remote answer."""

# mypy: ignore-errors

import time

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

STEP_SECONDS = 0.002


class Computing(CartPoleEnv):
    """Two milliseconds of this thread's processor time, however busy the machine is."""

    def step(self, action):
        until = time.thread_time() + STEP_SECONDS
        while time.thread_time() < until:
            pass
        return super().step(action)


class Waiting(CartPoleEnv):
    """Two milliseconds, or the given number of seconds, in which the processor is free for others."""

    def __init__(self, seconds=STEP_SECONDS, **arguments):
        super().__init__(**arguments)
        self._seconds = seconds

    def step(self, action):
        time.sleep(self._seconds)
        return super().step(action)


for world in (Computing, Waiting):
    gymnasium.register(f"parlmesh-bench/{world.__name__}-v0", world, max_episode_steps=500)
