"""Keeps child processes alive: starts them, restarts them with back-off up to a limit, and leaves none behind.

async with Supervisor(note=print) as supervisor:
    supervisor.start(spec)
    port = await supervisor.serving("learner", deadline_seconds=30)
# here every child and its session has ended
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from parlmesh.errors import DeadlineExceeded, FailedPrecondition

from .child_process import describe_end, has_served, kill_session, last_words, log_size, serving_port, spawn, terminate
from .process_exit import Process
from .restart_policy import DEFAULT_LIMITS, RestartLimits, restart_delay

HOPELESS_EXITS = {2: "its configuration", 4: "its certificates or tokens"}
"""Exit codes after which a restart cannot help, with the reason."""


_DEFECT = 1
"""The exit code of any other error. A taken port or a signal may be temporary."""


class ChildState(StrEnum):
    """The state of a child."""

    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing off"
    GIVEN_UP = "given up"
    STOPPED = "stopped"


@dataclass(frozen=True)
class ChildSpec:
    """A named child to run."""

    name: str
    command: Callable[[int], Sequence[str]]
    """The command line for an incarnation, 1 for the first start."""
    log: Path
    first_incarnation: int = 1
    grace_seconds: float = 0.0
    """Time to end on its own once asked to; 0 = the supervisor's default."""
    last_signal: int = signal.SIGKILL
    """What it gets when this process ends without having stopped it."""


@dataclass
class Child:
    """The current state of a supervised child; only the supervisor changes it."""

    spec: ChildSpec
    incarnation: int = 0
    state: ChildState = ChildState.STARTING
    pid: int | None = None
    restarts: int = 0
    reason: str = ""
    """Why it is not restarted."""
    refusal: int = 0
    """The exit code that says a restart cannot help; 0 = there was none."""
    ends: list[float] = field(default_factory=list)
    log_offset: int = 0
    alike: tuple[str, int] = ("", 0)
    """Last words of starts that never served, and how often they were equal in a row."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the child is stopped or no longer restarted."""
    process: Process | None = None
    grace: asyncio.TimerHandle | None = None


class Supervisor:
    """Owns child processes for the length of an `async with`."""

    def __init__(
        self,
        *,
        note: Callable[[str], None],
        limits: RestartLimits = DEFAULT_LIMITS,
        grace_seconds: float = 5.0,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.children: dict[str, Child] = {}
        self._note = note
        self._limits = limits
        self._grace_seconds = grace_seconds
        self._environment = dict(os.environ if environment is None else environment)
        self._clock = clock
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ask_to_stop()
        await self._tasks.__aexit__(kind, error, trace)

    @property
    def restarts(self) -> int:
        """Restarts of all children so far."""
        return sum(child.restarts for child in self.children.values())

    def start(self, spec: ChildSpec) -> Child:
        """Starts to supervise a child; replaces a settled one with the same name."""
        previous = self.children.get(spec.name)
        if previous is not None and not previous.settled.is_set():
            raise FailedPrecondition(f"child {spec.name} is already running", child=spec.name)
        child = Child(spec, restarts=previous.restarts if previous else 0)
        self.children[spec.name] = child
        self._tasks.create_task(self._supervise(child), name=f"supervise {spec.name}")
        return child

    async def serving(self, name: str, *, deadline_seconds: float) -> int:
        """Waits for the child's "serving" log line and returns its port."""
        child = self.children[name]
        try:
            async with asyncio.timeout(deadline_seconds):
                while (port := serving_port(child.spec.log, child.log_offset)) is None:
                    if child.settled.is_set():
                        raise FailedPrecondition(child.reason or f"{name} was stopped before it served", child=name)
                    await _passed(child.settled, 0.05)
                return port
        except TimeoutError:
            words = last_words(child.spec.log, child.log_offset)
            raise DeadlineExceeded(
                f"{name} did not serve within {deadline_seconds:g} s, its last words: {words or 'none'}"
                f" (log {child.spec.log})",
                child=name,
            ) from None

    def ask_to_stop(self, names: Iterable[str] | None = None) -> None:
        """Sends SIGTERM now and SIGKILL after the grace period, without restarts; to all children if none is named."""
        for child in self._chosen(names):
            child.stopping.set()
            if child.process is not None:
                self._end(child, child.process)

    async def stop(self, names: Iterable[str] | None = None) -> None:
        """Asks the chosen children to stop and waits until they have ended."""
        self.ask_to_stop(names)
        for child in self._chosen(names):
            await child.settled.wait()

    def kill(self) -> None:
        """Kills all children immediately."""
        for child in self._chosen(None):
            child.stopping.set()
            if child.process is not None:
                kill_session(child.process.pid)

    def _chosen(self, names: Iterable[str] | None) -> list[Child]:
        return list(self.children.values()) if names is None else [self.children[name] for name in names]

    def _end(self, child: Child, process: Process) -> None:
        if child.grace is None:
            terminate(process)
            loop = asyncio.get_running_loop()
            grace_seconds = child.spec.grace_seconds or self._grace_seconds
            child.grace = loop.call_later(grace_seconds, kill_session, process.pid)

    async def _supervise(self, child: Child) -> None:
        child.incarnation = child.spec.first_incarnation
        try:
            while not child.stopping.is_set():
                end = await self._run_once(child)
                if child.stopping.is_set():
                    return
                delay = self._judge(child, end)
                if delay is None:
                    return
                await _passed(child.stopping, delay)
                child.incarnation += 1
                child.restarts += 1
        finally:
            if child.state is not ChildState.GIVEN_UP:
                child.state = ChildState.STOPPED
            child.settled.set()

    async def _run_once(self, child: Child) -> int | str:
        """Runs one incarnation to its end; returns the return code, or why it could not be started."""
        child.state = ChildState.STARTING
        child.log_offset = log_size(child.spec.log)
        try:
            process = spawn(
                child.spec.command(child.incarnation),
                child.spec.log,
                self._environment,
                last_signal=child.spec.last_signal,
            )
        except OSError as error:
            return f"cannot be started: {error}"
        child.process, child.pid, child.state = process, process.pid, ChildState.RUNNING
        try:
            if child.stopping.is_set():
                self._end(child, process)
            return await process.wait()
        finally:
            # Kills the processes that the child started, and the child if this task is cancelled.
            kill_session(process.pid)
            await process.wait()
            if child.grace is not None:
                child.grace.cancel()
            child.process = child.pid = child.grace = None

    def _judge(self, child: Child, end: int | str) -> float | None:
        """The delay before the next start; None, with a reason in the child, if it is not restarted."""
        now = self._clock()
        child.ends.append(now)
        name, log = child.spec.name, child.spec.log
        how = end if isinstance(end, str) else describe_end(end)
        words = last_words(log, child.log_offset).removeprefix("error: ")
        if isinstance(end, int) and end in HOPELESS_EXITS:
            child.refusal = end
            self._give_up(child, f"{name} refused {HOPELESS_EXITS[end]}: {words or f'see {log}'}")
            return None
        if end == _DEFECT and self._fails_alike(child, words):
            times = f"{self._limits.max_alike} times in the same way before it served"
            self._give_up(child, f"{name} ended {times}: {words} ({how}; log {log})")
            return None
        delay = restart_delay(child.ends, now, self._limits)
        if delay is None:
            times = f"{self._limits.max_restarts + 1} times within {self._limits.window_seconds:g} s"
            said = f", its last words: {words}" if words else ""
            self._give_up(child, f"{name} ended {times} and is not restarted ({how}{said}; log {log})")
            return None
        child.state = ChildState.BACKING_OFF
        self._note(f"{name} ended ({how}), starting it again in {delay:.1f} s")
        return delay

    def _fails_alike(self, child: Child, words: str) -> bool:
        """Whether the child never served and ended with the same words each time, so that a restart cannot help."""
        if not words or has_served(child.spec.log, child.log_offset):
            child.alike = ("", 0)
            return False
        said, times = child.alike
        child.alike = (words, times + 1 if words == said else 1)
        return child.alike[1] >= self._limits.max_alike

    def _give_up(self, child: Child, reason: str) -> None:
        child.state, child.reason = ChildState.GIVEN_UP, reason
        self._note(reason)


async def _passed(event: asyncio.Event, seconds: float) -> None:
    """Waits for the event, at most for the given seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
