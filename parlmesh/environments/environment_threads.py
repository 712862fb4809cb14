"""Steps single environments as one vector: in turn, or in parallel threads if their steps mostly wait.

Threads are enough, because a waiting step lets the others run and nothing has to be pickled. Each environment is
stepped by one thread at a time and shares nothing with the others, so the same seed gives the same episodes either way.
Threads that mostly wait run on one core: passing the interpreter lock between cores costs more than such a step.
"""

import contextlib
import copy
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, SupportsFloat, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, iterate

from parlmesh.errors import InvalidInput
from parlmesh.telemetry import get_logger
from parlmesh.types import Array

log = get_logger("parlmesh.environments")

MOST_THREADS = 16
# Steps of the vector per judgement, and the number of judgements.
_JUDGED_STEPS, _JUDGEMENTS = 4, 64
# A shorter step costs less than waking a thread.
_LEAST_SECONDS = 2e-4
# Only Linux has statistics per thread; elsewhere no step counts as waiting.
_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)

# After this many turns, the threads move to the core of the thread that waits for them.
_FOLLOWED_TURNS = 64
_STAT = Path("/proc/thread-self/stat")

_Work: TypeAlias = Callable[[int], None]


class SteppedEnvironments(SyncVectorEnv):
    """`threads` step the environments; None = one, and up to 16 once their steps are found to wait.

    Infos are dropped. Environments that are `resting` are not stepped; those in `seeds` are reset by the next step with
    their seed, whether or not their episode has ended.
    """

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env[Any, Any]]], threads: int | None = None) -> None:
        super().__init__(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
        self.resting: Array = np.zeros(self.num_envs, np.bool_)
        self.seeds: dict[int, int] = {}
        self._crew: _Crew | None = None
        self._judge = _Judge() if threads is None and self.num_envs > 1 else None
        if threads is not None and min(threads, self.num_envs) > 1:
            self._crew = _Crew(min(threads, self.num_envs))

    @property
    def threads(self) -> int:
        """Number of threads that step the environments now."""
        return 1 if self._crew is None else self._crew.size

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Like gymnasium's, with consecutive seeds."""
        ended = self.resting = np.zeros(self.num_envs, np.bool_)
        self.seeds = {}
        self._terminations, self._truncations, self._autoreset_envs = ended.copy(), ended.copy(), ended.copy()

        def start(index: int) -> None:
            given = None if seed is None else seed + index
            with self._roaming():
                self._env_obs[index], _ = self.envs[index].reset(seed=given, options=options)

        self._each(start)
        return self._joined(), {}

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Steps all environments; the step after the end of an episode only resets."""
        given = tuple(iterate(self.action_space, actions))

        def step(index: int) -> None:
            reward: SupportsFloat = 0.0
            terminated = truncated = False
            if index in self.seeds or self._autoreset_envs[index]:
                with self._roaming():
                    seen, _ = self.envs[index].reset(seed=self.seeds.get(index))
            else:
                seen, reward, terminated, truncated, _ = self.envs[index].step(given[index])
            self._env_obs[index] = seen
            self._rewards[index] = _number(self.envs[index], reward)
            self._terminations[index], self._truncations[index] = terminated, truncated

        if self._judge is None:
            self._each(step)
        elif self._judge.sees(lambda: self._each(step), self.num_envs):
            threads = min(MOST_THREADS, self.num_envs)
            # Computation that releases the interpreter lock needs more cores if it is more than one core can do.
            one_core = self._judge.cpu_share * threads <= 1.0
            self._crew = _Crew(threads, one_core=one_core)
            log.info("environments_wait", threads=threads, environments=self.num_envs, one_core=one_core)
            self._judge = None
        elif self._judge.over:
            self._judge = None
        self.seeds = {}
        self._autoreset_envs = np.logical_or(self._terminations, self._truncations)
        flags = self._terminations.copy(), self._truncations.copy()
        return self._joined(), self._rewards.copy(), *flags, {}

    def close_extras(self, **kwargs: Any) -> None:
        """Also ends the threads."""
        if self._crew is not None:
            self._crew.close()
        super().close_extras(**kwargs)

    def _each(self, work: _Work) -> None:
        indices = np.flatnonzero(~self.resting).tolist()
        if self._crew is not None:
            self._crew.do(work, indices)
            return
        for index in indices:
            work(index)

    def _roaming(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._crew is None else self._crew.roaming()

    def _joined(self) -> Any:
        self._observations = concatenate(self.single_observation_space, self._env_obs, self._observations)
        return copy.deepcopy(self._observations)


def _number(environment: gymnasium.Env[Any, Any], reward: SupportsFloat) -> float:
    try:
        return float(reward)
    except (TypeError, ValueError) as error:
        cls = type(environment.unwrapped)
        said = (
            f"step() of {cls.__module__}.{cls.__qualname__} returned the reward {reward!r:.60}; it must be one number"
        )
        raise InvalidInput(said, reason="ENVIRONMENT_STEP") from error


class _Judge:
    """Judges the first steps: a thread that waits gives up its core voluntarily, one that is preempted does not."""

    def __init__(self) -> None:
        self._steps = 0
        self._judgements = 0
        self._seconds = self._cpu_seconds = 0.0
        self._switches = 0
        self.cpu_share = 1.0
        """Smallest share of processor time in a step's duration; the smallest, because the first steps compute more."""

    @property
    def over(self) -> bool:
        """Whether it has judged often enough."""
        return self._judgements >= _JUDGEMENTS

    def sees(self, step: Callable[[], None], environments: int) -> bool:
        """Runs the step; returns whether steps mostly wait, judged by this one and those before."""
        seconds, cpu, switches = time.perf_counter(), time.thread_time(), _switches()
        step()
        seconds, cpu = time.perf_counter() - seconds, time.thread_time() - cpu
        self.cpu_share = min(self.cpu_share, cpu / max(seconds, 1e-9))
        self._seconds += seconds
        self._cpu_seconds += cpu
        self._switches += _switches() - switches
        self._steps += 1
        if self._steps < _JUDGED_STEPS:
            return False
        found = waits(self._seconds, self._cpu_seconds, self._switches, self._steps * environments)
        self._steps = self._switches = 0
        self._seconds = self._cpu_seconds = 0.0
        self._judgements += 1
        return found


def waits(seconds: float, cpu_seconds: float, switches: int, steps: int) -> bool:
    """Whether steps with these totals and voluntary context switches mostly waited."""
    return seconds >= _LEAST_SECONDS * steps and cpu_seconds <= 0.5 * seconds and switches >= 0.5 * steps


def _switches() -> int:
    return resource.getrusage(_THREAD).ru_nvcsw if _THREAD is not None else 0


class _Crew:
    """Threads with fixed environments each. They are daemons: a step that never ends does not keep the process alive.

    `one_core`: all run on the core of the thread that waits for them, which the system may move freely.
    """

    def __init__(self, size: int, *, one_core: bool = False) -> None:
        self.size = size
        self._cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._one_core = one_core and len(self._cores) > 1 and _STAT.exists()
        self._core, self._turns = -1, 0
        self._inboxes: list[SimpleQueue[tuple[_Work, list[int]] | None]] = [SimpleQueue() for _ in range(size)]
        self._failed: list[tuple[int, Exception]] = []
        self._busy = 0
        self._counting = threading.Lock()
        self._done: SimpleQueue[None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, args=(inbox,), name=f"stepping-{number}", daemon=True)
            for number, inbox in enumerate(self._inboxes)
        ]
        for thread in self._threads:
            thread.start()

    def do(self, work: _Work, indices: Sequence[int]) -> None:
        """Returns when all work is done; of several errors, raises that of the first environment."""
        parts = [[index for index in indices if index % self.size == number] for number in range(self.size)]
        busy = [(inbox, part) for inbox, part in zip(self._inboxes, parts, strict=True) if part]
        if not busy:
            return
        self._busy, self._failed = len(busy), []
        if self._one_core and self._turns % _FOLLOWED_TURNS == 0:
            self._follow()
        self._turns += 1
        for inbox, part in busy:
            inbox.put((work, part))
        # Only the last thread signals: being woken by each would cost as much as their steps.
        self._done.get()
        if self._failed:
            raise min(self._failed, key=lambda failure: failure[0])[1]

    @contextlib.contextmanager
    def roaming(self) -> Iterator[None]:
        """Lets one of the threads use any core, so that a simulator it starts is not tied to a single core."""
        if self._core < 0:
            yield
            return
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self._cores)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, {self._core})

    def _follow(self) -> None:
        # The core is the 37th field after the name, which may contain blanks and brackets.
        core = int(_STAT.read_text().rpartition(")")[2].split()[36])
        if core == self._core:
            return
        self._core = core
        for thread in self._threads:
            # Other code may have set other limits, which take precedence.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread.native_id or 0, {core})

    def close(self) -> None:
        """Ends the threads, without waiting for a step that never ends."""
        for inbox in self._inboxes:
            inbox.put(None)

    def _serve(self, inbox: "SimpleQueue[tuple[_Work, list[int]] | None]") -> None:
        while (item := inbox.get()) is not None:
            work, indices = item
            for index in indices:
                try:
                    work(index)
                except Exception as error:
                    self._failed.append((index, error))
                    break
            del work, item
            with self._counting:
                self._busy -= 1
                last = not self._busy
            if last:
                self._done.put(None)
