"""Crashes at the failpoints: the real shell, committer and store, and a copy of the disk at the moment of each crash.

A restart from such a copy must find exactly the state after some decision, at the earliest the last announced one:
nothing acknowledged is missing, and no decision is incomplete.
"""

import asyncio
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

from parlmesh.errors import FleetError
from parlmesh.v1 import fleet_service_pb2 as fleet_pb

from .. import failpoints
from ..config import SchedulerConfig
from ..core.actions import Persist
from ..core.actors.placement import ActorCommand
from ..core.core import Core
from ..core.task import Task
from ..shell import Shell
from ..store import SqliteStore, Store
from ..store.committer import Committer
from ..wire import messages
from .invariants import Violation, check_whole
from .journal_replay import describe_actor, describe_task

OPERATIONS = 30
CRASH_SHARE = 0.3
MOST_CRASHES = 4
KINDS = ("noop", "echo")

State = dict[str, tuple[Any, ...]]


class Ground(Protocol):
    """Where a store keeps its data, and how to copy it at one moment."""

    def store(self, compact_records: int) -> Store:
        """The store that runs."""

    def freeze(self, number: int) -> Callable[[], Store]:
        """Copies the present data; the result opens a store with it."""


class Files:
    """SQLite's files: a crash is a copy of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self, compact_records: int) -> Store:
        path = self._folder / "live" / "s.sqlite"
        return SqliteStore(path, synchronous="normal", compact_records=compact_records)

    def freeze(self, number: int) -> Callable[[], Store]:
        folder = self._folder / f"crash-{number}"
        shutil.copytree(self._folder / "live", folder)
        return lambda: SqliteStore(folder / "s.sqlite")


class StillStore:
    """Holds still between two calls while its data is copied, because a crash happens at one moment."""

    durable = True

    def __init__(self, store: Store) -> None:
        self._store = store
        self.still = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, batch: bytes, records: int) -> None:
        with self.still:
            self._store.append(batch, records)

    def compact(self) -> Iterator[None]:
        steps = self._store.compact()
        while True:
            with self.still:
                try:
                    next(steps)
                except StopIteration:
                    return
            yield


class NotingCommitter(Committer):
    """Reports each decision that it is given to record: by then the core has changed completely."""

    def __init__(self, store: StillStore, on_record: Callable[[int], None]) -> None:
        super().__init__(cast(Store, store), on_health=lambda healthy: None)
        self._on_record = on_record

    def add(self, persist: Persist) -> None:
        super().add(persist)
        self._on_record(self._given)


class Crash:
    """The data at one moment, and the numbers of decisions and acknowledgements by then."""

    def __init__(self, reopen: Callable[[], Store], told: int, decided: int) -> None:
        self.reopen, self.told, self.decided = reopen, told, decided


class CrashSchedule:
    """One seed and one failpoint; `crashes` are checked by `run`."""

    def __init__(self, seed: int, place: str, ground: Ground) -> None:
        self._rng = random.Random(f"{place}-{seed}")  # noqa: S311 - must replay
        # A generator of its own, because the committer's thread draws from it too.
        self._crash_rng = random.Random(f"crash-{place}-{seed}")  # noqa: S311 - must replay
        self._place = place
        self._ground = ground
        self._now = 1000.0
        rng = self._rng
        self._config = SchedulerConfig.model_validate(
            {
                "retention": {"max_tasks": rng.choice((2, 10, 1000))},
                "queue": {"refuse_unknown_kinds": False},
                "retries": {"first_delay_seconds": 0.0},
            }
        )
        self._store = StillStore(ground.store(compact_records=rng.choice((3, 10))))
        self._states: dict[int, State] = {}
        self._told = 0
        self._actors: dict[str, int] = {}
        self._count = 0
        self.crashes: list[Crash] = []

    async def run(self) -> int:
        """Returns how often it crashed at the place; Violation names the first crash that lost or invented anything."""
        opened = self._store.open(self._now)
        core = Core(self._config, now=self._now, wall_time=self._now, lease_floor=opened.lease_floor)
        core.recover(opened.batches, self._now)
        committer = NotingCommitter(self._store, self._note)
        shell = Shell(self._config, core, clock=lambda: self._now, wall_clock=lambda: self._now, committer=committer)
        self._core, self._shell, self._committer = core, shell, committer
        committer.start(asyncio.get_running_loop())
        before = failpoints.hit, failpoints.armed
        failpoints.hit, failpoints.armed = self._hit, True  # type: ignore[assignment]
        try:
            self._note(0)
            for _ in range(OPERATIONS):
                self._operate()
                if self._rng.random() < 0.4:
                    await shell.committed()
            await shell.committed()
        finally:
            shell.close()
            await committer.close(10.0)
            failpoints.hit, failpoints.armed = before
            self._store.close()
        at_the_place = len(self.crashes)
        # One more crash at the end, when everything is recorded.
        self._crash()
        for crash in self.crashes:
            self._check(crash)
        return at_the_place

    def _hit(self, place: str) -> None:
        """Called in the thread that passes the place."""
        if place != self._place or len(self.crashes) == MOST_CRASHES:
            return
        if not self.crashes or self._crash_rng.random() < CRASH_SHARE:
            self._crash()

    def _crash(self) -> None:
        told = self._told
        with self._store.still:
            reopen = self._ground.freeze(len(self.crashes))
            self.crashes.append(Crash(reopen, told, self._committer._given + 1))

    def _operate(self) -> None:
        self._now += self._rng.expovariate(2.0)
        choices = [self._submit] * 2 + [self._report] * 3
        choices += [self._connect, self._cancel, self._command, self._disconnect, self._tick]
        # A request is refused whole; nothing has changed.
        with suppress(FleetError):
            self._rng.choice(choices)()
        self._shell.after_commit(partial(self._tell, self._committer._given))

    def _note(self, given: int) -> None:
        """Keeps the state after a decision, by the number of records that were given until then."""
        self._states[given] = _state(self._core)

    def _tell(self, given: int) -> None:
        self._told = max(self._told, given)

    def _submit(self) -> None:
        tasks = []
        for _ in range(self._rng.randint(1, 4)):
            self._count += 1
            parents = [f"t{number}" for number in range(1, self._count) if self._rng.random() < 0.05]
            tasks.append(
                Task(
                    f"t{self._count}",
                    self._rng.choice(KINDS),
                    body=self._rng.randbytes(self._rng.choice((0, 10, 300))),
                    priority=self._rng.randint(1, 5),
                    dependencies=tuple(parents),
                    submitter="s",
                )
            )
        self._shell.accept(tasks)

    def _connect(self) -> None:
        name = f"actor-{self._rng.randrange(3)}"
        session = self._shell.next_session()
        held = self._core.life.fleet.actors.get(name)
        kept = [task.lease for task in held.leases.values() if self._rng.random() < 0.7] if held is not None else []
        hello = fleet_pb.Hello(actor_id=name, node_id=name, incarnation=1, slots=self._rng.choice((1, 2, 4)))
        hello.kinds.extend(KINDS if self._rng.random() < 0.7 else KINDS[:1])
        hello.leases.extend(
            fleet_pb.Lease(task_id=name, lease_id=number, attempt=attempt) for name, number, attempt in kept
        )
        request = fleet_pb.ConnectRequest(hello=hello, credits=self._rng.randint(0, 4))
        self._shell.connect(messages.hello_from_proto(request, session), request.SerializeToString())
        self._actors[name] = session

    def _report(self) -> None:
        if not self._actors:
            return
        name, session = self._rng.choice(sorted(self._actors.items()))
        actor = self._core.life.fleet.actors.get(name)
        request = fleet_pb.ConnectRequest(credits=self._rng.randint(0, 3))
        for task in list(actor.leases.values()) if actor is not None else ():
            if self._rng.random() < 0.6:
                result = request.results.add()
                result.lease.task_id, result.lease.lease_id, result.lease.attempt = task.lease
                if self._rng.random() < 0.2:
                    result.failure.reason, result.failure.retryable = "HANDLER_ERROR", self._rng.random() < 0.5
                else:
                    result.result.parameters.update({"n": self._rng.randrange(1000)})
        self._shell.receive(session, request.SerializeToString())

    def _cancel(self) -> None:
        chosen = [task_id for task_id in self._core.life.tasks if self._rng.random() < 0.1]
        with self._shell._decision:
            self._core.cancel(chosen, self._now)
            self._shell._perform()

    def _command(self) -> None:
        if self._actors:
            command = self._rng.choice((ActorCommand.PAUSE, ActorCommand.RESUME, ActorCommand.RESET))
            with self._shell._decision:
                self._core.command([self._rng.choice(sorted(self._actors))], command, self._now)
                self._shell._perform()

    def _disconnect(self) -> None:
        if self._actors:
            self._shell.disconnect(self._actors.pop(self._rng.choice(sorted(self._actors))))

    def _tick(self) -> None:
        self._now += self._rng.choice((0.1, 5.0, 30.0))
        with self._shell._decision:
            self._core.tick(self._now, self._now)
            self._shell._perform()

    def _check(self, crash: Crash) -> None:
        store = crash.reopen()
        try:
            opened = store.open(self._now)
            core = Core(self._config, now=self._now, wall_time=self._now, lease_floor=opened.lease_floor)
            unreadable = core.recover(opened.batches, self._now)
        finally:
            store.close()
        if unreadable.described:
            raise Violation(f"after a crash the journal has something unreadable: {unreadable.described[0]}")
        check_whole(core)
        found = _state(core)
        for given in range(crash.told, crash.decided + 1):
            if found == self._states.get(given):
                return
        told = self._states[crash.told]
        differing = sorted(key for key in told.keys() | found.keys() if told.get(key) != found.get(key))
        detail = "; ".join(f"{key}: told {told.get(key)}, found {found.get(key)}" for key in differing[:3])
        raise Violation(f"a crash at {self._place} after {crash.told} of {crash.decided} records: {detail}")


def _state(core: Core) -> State:
    """Everything that a restart must give back."""
    tasks = {f"task {name}": describe_task(task) for name, task in core.life.tasks.items()}
    actors = {f"actor {name}": describe_actor(actor) for name, actor in core.life.fleet.actors.items()}
    return {**tasks, **actors, "kinds": (sorted(core.life.roster.kinds),)}


def run_crashes(seed: int, place: str, folder: Path) -> int:
    """Runs one schedule and returns how many crashes it survived; the folder is removed afterwards."""
    folder.mkdir(parents=True)
    try:
        return crash_on(Files(folder), seed, place)
    finally:
        shutil.rmtree(folder)


def crash_on(ground: Ground, seed: int, place: str) -> int:
    """Runs one schedule and returns how many crashes it survived."""
    return asyncio.run(CrashSchedule(seed, place, ground).run())
