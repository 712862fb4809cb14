"""A core with a hand clock, its actions per actor, and short helpers for events."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import pytest

from scheduler.config import SchedulerConfig
from scheduler.core.actions import Action, Assign, Close, Command, Notify, Persist, Revoke, Welcome
from scheduler.core.actors.actor_sessions import Hello
from scheduler.core.actors.placement import Actor, ActorCommand
from scheduler.core.core import Core
from scheduler.core.task import Failure, LeaseName, Task
from scheduler.journal.records import encode
from scheduler.simulation.journal_replay import differences, standby_differences


class Harness:
    """Drives a core and keeps its actions."""

    # All cores of the current test, for the oracle.
    made: ClassVar[list["Harness"]] = []

    def __init__(self, **settings: Any) -> None:
        self.now = 1000.0
        self.config = SchedulerConfig(**settings)
        self.core = Core(self.config, now=self.now, wall_time=self.now, rng=random.Random(1), lease_floor=1 << 32)
        self.outcomes: list[Task] = []
        # Encoded batches with their numbers of records; and all of them, whatever a test does to `records`.
        self.records: list[tuple[bytes, int]] = []
        self.journal: list[bytes] = []
        Harness.made.append(self)
        self.held: dict[str, list[Task]] = {}
        self.revoked: dict[str, list[LeaseName]] = {}
        self.commands: dict[str, list[ActorCommand]] = {}
        self.welcomes: dict[str, list[LeaseName]] = {}
        self.newest_incarnation = 0
        self.closed: list[int] = []
        self.waited_for_commit: list[LeaseName] = []
        # What is to be done once commits succeed again.
        self.waiting: list[Callable[[], None]] | None = None
        self._names: dict[int, str] = {}
        self._sessions = 0

    def submit(self, *tasks: Task) -> list[str]:
        task_ids = self.core.submit(tasks, self.now)
        self._collect()
        return task_ids

    def connect(
        self, actor_id: str, *, credits: int | None = None, leases: Iterable[LeaseName] = (), **hello: Any
    ) -> int:
        """Adds an actor of the kind "noop" with as many credits as slots."""
        self._sessions += 1
        session = self._sessions
        self._names[session] = actor_id
        hello = {"kinds": ("noop",), "incarnation": 1, **hello}
        self.core.connect(Hello(session, actor_id, leases=tuple(leases), **hello), self.now)
        self._collect()
        slots = hello.get("slots", 1)
        self.report(session, credits=slots if credits is None else credits)
        return session

    def report(self, session: int, **message: Any) -> None:
        self.core.report(session, self.now, **message)
        self._collect()

    def foresee(self) -> None:
        self.core.foresee(self.now)
        self._collect()

    def disconnect(self, session: int) -> None:
        self.core.disconnect(session, self.now)
        self._collect()

    def finish(self, session: int, *tasks: Task, ran: float = 0.01, result: bytes = b"", credit: bool = True) -> None:
        ends = [(task.task_id, task.lease_id, result, None, ran) for task in tasks or self.take(session)]
        self.report(session, results=ends, credits=len(ends) if credit else 0)

    def fail(
        self,
        session: int,
        task: Task,
        *,
        retryable: bool = True,
        reason: str = "HANDLER_ERROR",
        credit: bool = True,
    ) -> None:
        failure = Failure(reason, "it broke", retryable)
        self.report(session, results=[(task.task_id, task.lease_id, b"", failure, 0.01)], credits=1 if credit else 0)

    def take(self, session: int) -> list[Task]:
        """The tasks assigned to this actor since the last call."""
        return self.held.pop(self._names[session], [])

    def cancel(self, *task_ids: str) -> list[str]:
        cancelled = self.core.cancel(task_ids, self.now)
        self._collect()
        return cancelled

    def command(self, command: ActorCommand, *actor_ids: str) -> None:
        self.core.command(actor_ids, command, self.now)
        self._collect()

    def rebalance(self) -> int:
        moved = self.core.rebalance(self.now)
        self._collect()
        return moved

    def heartbeat(self, session: int, *leases: LeaseName) -> None:
        self.report(session, heartbeat=list(leases))

    def hold(self, session: int) -> None:
        """Sends a heartbeat for everything that the actor was given."""
        leases = self.core.sessions.by_number[session].leases
        self.heartbeat(session, *[task.lease for task in leases.values()])

    def pass_time(self, seconds: float, *, alive: Iterable[int] = (), step: float = 0.5) -> None:
        """Ticks on; actors named in `alive` send heartbeats for all they hold."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step)
            for session in alive:
                self.hold(session)
            self.core.tick(self.now, self.now)
            self._collect()

    def stall(self, seconds: float) -> None:
        """The scheduler itself stalls."""
        self.now += seconds
        self.core.tick(self.now, self.now)
        self._collect()

    def hang_disk(self, *, failing: bool) -> None:
        self.waiting, self.core.life.first_leases_wait = [], failing

    def heal_disk(self) -> None:
        waiting, self.waiting, self.core.life.first_leases_wait = self.waiting or [], None, False
        for release in waiting:
            release()

    def actor(self, actor_id: str) -> Actor:
        return self.core.life.roster.actor(actor_id)

    def states(self, *task_ids: str) -> list[str]:
        return [self.core.task(task_id).state.name for task_id in task_ids]

    def _collect(self) -> None:
        for action in self.core.take_actions():
            self._keep(action)

    def _after_commit(self, release: Callable[[], None]) -> None:
        if self.waiting is None:
            release()
        else:
            self.waiting.append(release)

    def _keep(self, action: Action) -> None:
        if isinstance(action, Persist):
            self.records.append(encode(action))
            self.journal.append(self.records[-1][0])
        elif isinstance(action, Notify):
            self.outcomes += action.tasks
            self._after_commit(lambda: self.core.announced(len(action.tasks)))
        elif isinstance(action, Close):
            self.closed.append(action.session)
        else:
            name = self._names[action.session]
            if isinstance(action, Assign):
                self.held.setdefault(name, []).extend(action.tasks)
                if action.after_commit:
                    self.waited_for_commit += [task.lease for task in action.tasks]
                    lease_ids = [task.lease_id for task in action.tasks]
                    self._after_commit(lambda: self.core.begin(action.session, action.tasks, lease_ids, self.now))
            elif isinstance(action, Revoke):
                self.revoked.setdefault(name, []).extend(action.leases)
            elif isinstance(action, Command):
                self.commands.setdefault(name, []).append(action.command)
            elif isinstance(action, Welcome):
                self.welcomes[name] = action.leases
                self.newest_incarnation = action.newest_incarnation


def noop(task_id: str, **options: Any) -> Task:
    return Task(task_id, "noop", **options)


def why(task: Task) -> Failure:
    assert task.failure is not None
    return task.failure


def ids(tasks: Iterable[Task]) -> list[str]:
    return [task.task_id for task in tasks]


@pytest.fixture(autouse=True)
def _journals_give_back_what_the_cores_know() -> Iterator[None]:
    """The oracle, after every test: a restart now must change nothing."""
    Harness.made.clear()
    yield
    for harness in Harness.made:
        assert differences(harness.core, harness.journal, harness.now) == []
        assert standby_differences(harness.core, harness.journal, harness.now) == []


@pytest.fixture
def make() -> Callable[..., Harness]:
    return Harness


@pytest.fixture
def harness() -> Harness:
    return Harness()
