"""The invariants after every event, whatever fails. Checks the core from outside, with its own records."""

from collections import Counter
from collections.abc import Iterable

from ..core.actions import Assign, Notify
from ..core.actors.placement import Actor, ActorState
from ..core.core import Core
from ..core.task import LeaseName, Task, TaskState

WHOLE_CHECK_EVERY = 16
# Checks that look at every task are made less often when there are more than this.
MANY_TASKS = 200


class Violation(AssertionError):
    """An invariant is broken; the message says which, and for which task."""


class Books:
    """An independent record of promises and events, kept across crashes of the scheduler."""

    def __init__(self, aging_seconds: float) -> None:
        self._aging = aging_seconds
        # Submitters ask until they are answered.
        self.asked_for: set[str] = set()
        # Acknowledged to a submitter: must reach exactly one outcome.
        self.promised: set[str] = set()
        # Announced to watchers: must never change or come again.
        self.announced: dict[str, tuple[TaskState, bytes]] = {}
        self.newest_lease: dict[str, int] = {}
        # How often a task was sent to an actor: it cannot have been lost more often.
        self._given_out: Counter[str] = Counter()
        self._highest = 0
        self._highest_before = 0
        self._orders = 0
        self.submitters: set[str] = set()
        self.events = 0
        # Leases that outlived a scheduler.
        self.kept_leases = 0
        self.takeovers = 0

    def promise(self, task_ids: Iterable[str]) -> None:
        self.promised.update(task_ids)

    def announce(self, notify: Notify) -> None:
        """Takes outcomes that were released to watchers."""
        for task in notify.tasks:
            if task.task_id in self.announced:
                raise Violation(f"{task.task_id} was announced twice")
            if not task.final:
                raise Violation(f"{task.task_id} was announced in state {task.state.name}")
            if task.state is TaskState.SUCCEEDED:
                expected = f"{task.task_id}:{self.newest_lease[task.task_id]}".encode()
                if task.result != expected:
                    raise Violation(f"{task.task_id} ended with {task.result!r}, its newest lease gives {expected!r}")
            self.announced[task.task_id] = (task.state, task.result)

    def give_out(self, leases: Iterable[LeaseName]) -> None:
        """Takes leases that were sent to an actor; from then on older ones of the same task are void."""
        for lease in leases:
            if lease.lease_id <= self.newest_lease.get(lease.task_id, 0):
                raise Violation(f"lease {lease.lease_id} of {lease.task_id} is not above the one before")
            self.newest_lease[lease.task_id] = lease.lease_id
            self._given_out[lease.task_id] += 1

    def check_order(self, core: Core, action: Assign) -> None:
        """Leases grow, dependencies are met, and nothing that should have gone first was left behind."""
        actor = core.sessions.by_number[action.session]
        for task in action.tasks:
            if task.lease_id <= self._highest_before:
                raise Violation(f"lease {task.lease_id} of {task.task_id} is not above {self._highest_before}")
            self._highest = max(self._highest, task.lease_id)
            for parent_id in task.dependencies:
                parent = core.life.tasks.get(parent_id)
                if parent is not None and parent.state is not TaskState.SUCCEEDED:
                    raise Violation(f"{task.task_id} was assigned before its dependency {parent_id} succeeded")
        self._check_order(core, actor, action.tasks)

    def check_event(self, core: Core) -> None:
        """Called after all actions of an event were seen."""
        self.events += 1
        self._highest_before = self._highest
        if not self.events % max(WHOLE_CHECK_EVERY, len(core.life.tasks) // 4):
            check_whole(core)
            self._check_losses(core)

    def _check_losses(self, core: Core) -> None:
        for task in core.life.tasks.values():
            if task.losses > self._given_out[task.task_id]:
                times = self._given_out[task.task_id]
                raise Violation(f"{task.task_id} was lost {task.losses} times and sent to an actor {times} times")

    def check_restart(self, core: Core) -> None:
        """Everything promised or announced before a crash exists after it."""
        tasks = core.life.tasks
        for task_id in self.promised:
            if task_id not in tasks and task_id not in self.announced:
                raise Violation(f"{task_id} was accepted and is lost")
        for task_id, (state, result) in self.announced.items():
            task = tasks.get(task_id)
            if task is not None and (task.state, task.result) != (state, result):
                raise Violation(f"{task_id} was announced {state.name} and is {task.state.name} after a restart")
        for task in tasks.values():
            if task.actor is not None:
                # The journal does not say whether a lease was sent.
                self._given_out[task.task_id] = max(self._given_out[task.task_id], task.losses + 1)
        check_whole(core)

    def check_end(self) -> None:
        missing = self.promised - self.announced.keys()
        if missing:
            raise Violation(f"{len(missing)} accepted tasks never ended, {min(missing)} among them")

    def _key(self, task: Task) -> float:
        return task.submit_time - self._aging * task.priority

    def _check_order(self, core: Core, actor: Actor, given: list[Task]) -> None:
        """Only tasks that are still queued after the event are compared: they could have been taken instead."""
        self._orders += 1
        if self._orders % (1 + len(core.life.tasks) // MANY_TASKS):
            return
        rivals = [
            task
            for task in core.life.tasks.values()
            if task.state is TaskState.QUEUED and _fits(actor, task) and task.ready_time < core_time(given)
        ]
        for task in given:
            for rival in rivals:
                if rival.submitter == task.submitter and rival.priority == task.priority:
                    if rival.number < task.number:
                        raise Violation(f"{task.task_id} left before {rival.task_id}, which is older")
                elif len(self.submitters) == 1 and self._key(rival) < self._key(task) - 1e-9:
                    raise Violation(f"{task.task_id} left before {rival.task_id}, which is more urgent")


def core_time(given: list[Task]) -> float:
    """When these leases were granted."""
    return given[0].lease_time


def check_whole(core: Core) -> None:
    """Every table agrees with every other, and no ready task waits beside an actor that could take it."""
    life = core.life
    counts: Counter[TaskState] = Counter()
    size = 0
    for task in life.tasks.values():
        counts[task.state] += 1
        if not task.final:
            size += len(task.body)
        if (task.state is TaskState.RUNNING) != (task.actor is not None):
            raise Violation(f"{task.task_id} is {task.state.name} with actor {task.actor}")
        if task.actor is not None and task.actor.leases.get(task.lease_id) is not task:
            raise Violation(f"{task.task_id} has lease {task.lease_id} that its actor does not hold")
    held = sum(len(actor.leases) for actor in life.fleet.actors.values())
    if held != counts[TaskState.RUNNING]:
        raise Violation(f"{held} leases are held and {counts[TaskState.RUNNING]} tasks run")
    for state in TaskState:
        if life.count(state) != counts[state]:
            raise Violation(f"{counts[state]} tasks are {state.name}, counted {life.count(state)}")
    if life.queue.ready != counts[TaskState.QUEUED]:
        raise Violation(f"{counts[TaskState.QUEUED]} tasks are queued, the queue has {life.queue.ready}")
    if life.statistics.unfinished_bytes != size:
        raise Violation(f"unfinished tasks have {size} bytes, counted {life.statistics.unfinished_bytes}")
    _check_idle(core)


def _check_idle(core: Core) -> None:
    queued = [task for task in core.life.tasks.values() if task.state is TaskState.QUEUED]
    for actor in core.life.fleet.actors.values():
        if actor.credits < 0:
            raise Violation(f"actor {actor.actor_id} has {actor.credits} credits")
        if actor.state is ActorState.READY and actor.room > 0:
            for task in queued:
                if _fits(actor, task):
                    raise Violation(f"{task.task_id} waits although {actor.actor_id} has room for {actor.room}")


def _fits(actor: Actor, task: Task) -> bool:
    node_id, labels, _ = task.placement
    return task.kind in actor.kinds and labels <= actor.labels and node_id in ("", actor.node_id)
