import os
import threading

import gymnasium
import numpy as np
import pytest

from parlmesh.environments import Environments
from parlmesh.environments.environment_threads import MOST_THREADS, waits


class Counted(gymnasium.Env):
    """Observes its own random number and its steps; records the thread that stepped it."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, pause=0.0, fails=False):
        self._pause, self._fails = threading.Event() if pause else None, fails
        self._seconds, self.stepped, self.steps = pause, set(), 0
        self.cores: dict[str, list[set[int]]] = {"reset": [], "step": []}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.cores["reset"].append(os.sched_getaffinity(0))
        return self._look(), {}

    def step(self, action):
        self.stepped.add(threading.current_thread().name)
        self.cores["step"].append(os.sched_getaffinity(0))
        self.steps += 1
        if self._pause is not None:
            self._pause.wait(self._seconds)
        if self._fails and self.steps == 3:
            raise ValueError("three is too many")
        return self._look(), float(action), bool(self.np_random.random() < 0.2), False, {}

    def _look(self):
        return np.array([self.np_random.normal(), self.steps], np.float32).clip(-10, 10)


gymnasium.register("parlmesh-test/Counted-v0", lambda **given: Counted(**given))


def environments(count=6, **more):
    threads = more.pop("threads", None)
    return Environments({"id": "parlmesh-test/Counted-v0", "kwargs": more, "threads": threads}, count)


def played(envs, steps=40):
    try:
        found = [envs.reset(3).observation]
        for step in range(steps):
            seen, *rest = envs.step(np.arange(len(found[0])) % 2 if step % 2 else np.zeros(len(found[0]), np.int64))
            found += [seen.observation, *rest]
        return found
    finally:
        envs.close()


def test_threads_play_the_games_that_are_played_in_turn() -> None:
    in_turn, side_by_side = played(environments(threads=1)), played(environments(threads=4))
    assert all(np.array_equal(one, other) for one, other in zip(in_turn, side_by_side, strict=True))


def test_the_games_are_those_of_gymnasiums_own_vector() -> None:
    vector = gymnasium.make_vec("parlmesh-test/Counted-v0", 6, vectorization_mode="sync")
    theirs = [vector.reset(seed=3)[0]]
    for step in range(40):
        theirs += vector.step(np.arange(6) % 2 if step % 2 else np.zeros(6, np.int64))[:4]
    assert all(np.array_equal(one, other) for one, other in zip(played(environments()), theirs, strict=True))


def test_steps_that_wait_move_to_threads_by_themselves_and_the_games_stay_the_same() -> None:
    envs = environments(20, pause=0.001)
    inner = envs._envs
    assert inner.threads == 1
    found = played(envs)
    assert inner.threads == MOST_THREADS
    names = [env.unwrapped.stepped - {threading.current_thread().name} for env in inner.envs]
    assert all(len(name) == 1 for name in names)
    assert all(np.array_equal(one, other) for one, other in zip(found, played(environments(20)), strict=True))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
@pytest.mark.parametrize(("threads", "shared"), [(None, True), (6, False)])
def test_threads_of_steps_that_wait_share_a_core_but_not_what_a_reset_starts(threads, shared) -> None:
    """Threads set by the user may be meant to compute in parallel."""
    envs = environments(pause=0.005, threads=threads)
    stepped = envs._envs.envs
    allowed = os.sched_getaffinity(0)
    played(envs, steps=60)
    for each in stepped:
        cores = each.unwrapped.cores
        assert len(cores["reset"]) > 2
        assert all(found == allowed for found in cores["reset"])
        # The first steps show that they wait.
        assert all((len(found) == 1) is shared for found in cores["step"][8:])
    assert os.sched_getaffinity(0) == allowed


def test_steps_that_compute_stay_where_they_are() -> None:
    envs = environments()
    played(envs)
    assert envs._envs.threads == 1


@pytest.mark.parametrize(
    ("seconds", "cpu_seconds", "switches", "expected"),
    [
        (0.2, 0.01, 100, True),
        # Delayed by others, which does not count as waiting.
        (0.2, 0.01, 3, False),
        (0.2, 0.15, 100, False),
        # Short: a thread would cost more than it saves.
        (0.01, 0.0, 100, False),
    ],
)
def test_only_long_steps_that_give_their_core_away_are_said_to_wait(seconds, cpu_seconds, switches, expected) -> None:
    assert waits(seconds, cpu_seconds, switches, 100) is expected


def _steps(envs, count):
    for _ in range(count):
        envs.step(np.zeros(6, np.int64))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_a_step_reaches_the_caller_with_its_place(threads: int) -> None:
    envs = environments(threads=threads, fails=True)
    envs.reset(0)
    with pytest.raises(ValueError, match="three is too many") as raised:
        _steps(envs, 20)
    assert raised.traceback[-1].name == "step"
    envs.close()


def test_resting_environments_are_not_stepped() -> None:
    envs = environments(4, threads=2)
    envs.reset(0)
    envs.rest(np.array([False, True, False, True]))
    envs.step(np.zeros(4, np.int64))
    assert [env.unwrapped.steps for env in envs._envs.envs] == [1, 0, 1, 0]
    envs.close()


def test_closing_ends_the_threads() -> None:
    envs = environments(4, threads=4)
    envs.reset(0)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("stepping-")]
    assert len(threads) >= 4
    envs.close()
    for thread in threads:
        thread.join(60.0)
    assert not any(thread.is_alive() for thread in threads)
