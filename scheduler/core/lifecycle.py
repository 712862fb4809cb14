"""The transitions of a task's life, each with its counters, its journal record and its effect on others.

Everything that changes a task's state goes through here. Decides nothing about who may cause a transition.
"""

import random
from array import array
from collections.abc import Callable, Iterable, Sequence

from ..config import RetryConfig, SchedulerConfig
from . import dependencies
from .actions import Persist, Returned
from .allowances import Allowances
from .placement import SMALL_BODY_BYTES, Actor, Fleet, message_bytes
from .ready_queue import ReadyQueue, TaskClass
from .retention import Retention
from .roster import Roster
from .statistics import Statistics
from .task import NO_LEASE, NOT_BEGUN, QUEUED, RUNNING, SUCCEEDED, WAITING, Failure, LeaseName, Task, TaskState
from .timers import Endings, Timers
from .trace import Trace


def may_retry(task: Task, failure: Failure, config: RetryConfig) -> bool:
    """`task.failures` already counts this failure."""
    return failure.retryable and task.failures < (task.max_attempts or config.max_attempts)


def delay_seconds(failures: int, config: RetryConfig, rng: random.Random) -> float:
    """Doubles with every failure up to a limit; half of it is random, so that a burst of failures spreads out."""
    longest = config.longest_delay_seconds
    # The exponent is capped because a float overflows long before a patient task gives up.
    whole = min(longest, config.first_delay_seconds * 2.0 ** min(failures - 1, 64))
    return whole * (0.5 + 0.5 * rng.random())


def is_poison(task: Task, config: RetryConfig) -> bool:
    return task.losses >= config.quarantine_losses


# Random numbers fetched at once.
LEAPS = 512


class Lifecycle:
    """Tables of tasks and actors, and the moves between states."""

    def __init__(
        self,
        config: SchedulerConfig,
        rng: random.Random,
        now: float,
        wall_time: float,
        lease_floor: int,
        entropy: Callable[[int], bytes],
    ) -> None:
        self.config = config
        self.rng = rng
        self.tasks: dict[str, Task] = {}
        self.queue = ReadyQueue(config.queue.aging_seconds)
        self.fleet = Fleet(rng)
        self.timers = Timers()
        self.endings = Endings(config.dispatch.prefetch_seconds)
        self.retention = Retention(config.retention)
        self.statistics = Statistics(now)
        self.trace = Trace(config.retention.trace_events)
        self.roster = Roster(self.fleet, config.retention.kind_seconds)
        self.allowances = Allowances(config.security.quotas)
        # What the clock on the wall shows, for people; it may jump.
        self.wall_offset = wall_time - now
        # The journal's own clock: it goes on where the last start left it.
        self.journal_offset = wall_time - now
        self.next_number = 1
        self.last_lease = lease_floor
        # Whether first leases wait for their commit as well: while the store cannot be written.
        self.first_leases_wait = False
        self._entropy = entropy
        self._leaps: array[int] = array("H")
        # What happened since the core last gave out its actions.
        self.submitted: list[Task] = []
        self.returned: list[Returned] = []
        self.leased: list[Task] = []
        self.forgotten = 0
        self.assigned: dict[Actor, list[Task]] = {}
        self.assigned_again: dict[Actor, list[Task]] = {}
        self.revoked: dict[int, list[LeaseName]] = {}
        self.finished: list[Task] = []
        # Classes that gained a ready task: their idle actors must be looked for.
        self.fresh: dict[TaskClass, None] = {}

    def admit(self, tasks: Iterable[Task], now: float) -> None:
        """Enters new tasks: each is ready, waits for others, or ends with a parent that failed."""
        number = first = self.next_number
        ready: list[Task] = []
        dependent: list[Task] = []
        for task in tasks:
            task.number = number
            number += 1
            task.submit_time = now
            self.enter(task)
            self.submitted.append(task)
            (dependent if task.dependencies else ready).append(task)
        self.next_number = number
        self.statistics.accepted += number - first
        self.make_ready(ready, now)
        for task in dependent:
            self.attach(task, now)

    def enter(self, task: Task) -> None:
        self.tasks[task.task_id] = task
        task_class = None
        if len(task.body) <= SMALL_BODY_BYTES:
            # As most are: one step less for every task.
            task_class = self.queue.task_class(task.kind, task.placement)
        task.task_class = task_class = task_class or self._class_of(task)
        task_class.unfinished += 1
        self.statistics.by_state[WAITING] += 1
        self.statistics.unfinished_bytes += len(task.body)

    def enter_all(self, tasks: Sequence[Task]) -> None:
        """Tasks of a journal that are in `tasks` already."""
        last: Task | None = None
        for task in tasks:
            # Neighbours are mostly of one kind and size, and share its string.
            if (
                last is None
                or task.kind is not last.kind
                or task.placement is not last.placement
                or len(task.body) != len(last.body)
            ):
                task_class, last = self._class_of(task), task
            task.task_class = task_class
            task_class.unfinished += 1
        self.statistics.by_state[WAITING] += len(tasks)
        self.statistics.unfinished_bytes += sum([len(task.body) for task in tasks])
        self.allowances.take_again(tasks)

    def _class_of(self, task: Task) -> TaskClass:
        placement = task.placement
        if (needed := message_bytes(task.body)) != 0:
            placement = placement._replace(message_bytes=needed)
        task_class = self.queue.task_class(task.kind, placement)
        if task_class is None:
            task_class = self.queue.add_class(task.kind, placement)
            self.fleet.add_class(task_class)
        return task_class

    def attach(self, task: Task, now: float) -> None:
        """Counts the dependencies of a task that was entered."""
        bad_parent = dependencies.attach(task, self.tasks)
        if bad_parent is not None:
            self.finish(task, TaskState.FAILED, now, dependencies.failure_of(bad_parent))
        elif not task.missing:
            self.make_ready([task], now)

    def make_ready(self, tasks: Sequence[Task], now: float) -> None:
        """Queues tasks that wait for nothing but a slot. All come from one state."""
        if not tasks:
            return
        by_state = self.statistics.by_state
        by_state[tasks[0].state] -= len(tasks)
        by_state[QUEUED] += len(tasks)
        for task in tasks:
            task.state = QUEUED
            task.ready_time = now
            if task.queue_timeout is not None:
                self.timers.set(now + task.queue_timeout, task)
        for task_class in self.queue.push(tasks):
            self.fresh[task_class] = None

    def grant(self, tasks: list[Task], actor: Actor, now: float) -> None:
        """Leases tasks that `queue.take` returned."""
        count = len(tasks)
        by_state = self.statistics.by_state
        by_state[QUEUED] -= count
        by_state[RUNNING] += count
        lease_id, actor_id, leases = self.last_lease + self._leap(), actor.actor_id, actor.leases
        expires_at = now + self.config.leases.duration_seconds
        again: list[Task] = []
        all_wait = self.first_leases_wait
        for task in tasks:
            lease_id += 1
            task.state = RUNNING
            task.lease_id = lease_id
            task.attempts += 1
            task.lease_time = now
            task.started_at = 0.0
            task.actor = actor
            task.actor_id = actor_id
            task.expires_at = expires_at
            leases[lease_id] = task
            if task.leased_before or all_wait:
                task.expires_at = NOT_BEGUN
                again.append(task)
            task.leased_before = True
        self.last_lease = lease_id
        actor.credits -= count
        self.statistics.count_leases(tasks, now)
        self.leased += tasks
        if actor.even:
            self.endings.expect(actor, tasks, now)
        if again:
            self.assigned_again.setdefault(actor, []).extend(again)
            later = set(again)
            tasks = [task for task in tasks if task not in later]
        if tasks:
            self.assigned.setdefault(actor, []).extend(tasks)

    def _leap(self) -> int:
        """By how much the next lease is beyond the last, so that nobody knows one from another."""
        if not self._leaps:
            self._leaps = array("H", self._entropy(LEAPS * self._leaps.itemsize))
        return self._leaps.pop()

    def reclaim(self, task: Task, actor: Actor, now: float) -> None:
        """Gives a lease that was lost back to its actor; nobody else has had the task since."""
        self._leave_queue(task)
        self.statistics.by_state[task.state] -= 1
        self.statistics.by_state[RUNNING] += 1
        task.state = RUNNING
        task.losses -= 1
        self._bind(task, actor, now)
        self._note_return(task, now)
        self.leased.append(task)

    def _bind(self, task: Task, actor: Actor, now: float) -> None:
        task.actor = actor
        task.actor_id = actor.actor_id
        task.expires_at = now + self.config.leases.duration_seconds
        actor.leases[task.lease_id] = task

    def hold(self, task: Task, actor: Actor, now: float) -> None:
        """Keeps a lease that a journal speaks of, until its actor comes back or does not."""
        self.statistics.by_state[task.state] -= 1
        self.statistics.by_state[RUNNING] += 1
        task.state = RUNNING
        task.lease_time = now
        task.started_at = 0.0
        self._bind(task, actor, now)

    def take_back(self, task: Task, now: float) -> None:
        """Queues a leased task again without blame: it had not started, or its actor was told to drop it."""
        self._unlease(task)
        task.lease_id = NO_LEASE
        task.attempts -= 1
        self._note_return(task, now)
        self.make_ready([task], now)

    def lose(self, task: Task, now: float) -> None:
        """The actor of a running task is gone or silent. Its result still counts if it comes before the next lease."""
        actor_id = task.actor_id
        self._unlease(task)
        task.losses += 1
        self.statistics.lost_leases += 1
        if is_poison(task, self.config.retries):
            message = f'lost {task.losses} actors while they ran it, "{actor_id}" the last'
            self.finish(task, TaskState.QUARANTINED, now, Failure("ACTOR_LOST", message))
            return
        self.statistics.retried += 1
        self._note_return(task, now)
        self.make_ready([task], now)

    def fail_attempt(self, task: Task, failure: Failure, now: float) -> None:
        """An attempt ended badly: the task waits for the next one, or fails."""
        self._leave(task)
        task.lease_id = NO_LEASE
        task.failures += 1
        task.end_time = now
        if not may_retry(task, failure, self.config.retries):
            self.finish(task, TaskState.FAILED, now, failure)
            return
        by_state = self.statistics.by_state
        by_state[task.state] -= 1
        by_state[WAITING] += 1
        self.statistics.retried += 1
        task.state = WAITING
        task.failure = failure
        self.trace.add_retried(task)
        task.wake_time = now + delay_seconds(task.failures, self.config.retries, self.rng)
        self.timers.set(task.wake_time, task)
        self._note_return(task, now)

    def succeed(self, task: Task, result: bytes, now: float) -> None:
        self._leave(task)
        task.result = result
        task.failure = None
        self._end(task, SUCCEEDED, now)
        if task.children:
            self.make_ready(dependencies.release(task), now)

    def succeed_alone(self, task: Task, result: bytes, now: float) -> None:
        """The same for a leased task for which no other waits. `count_alone` must follow, for many of them at once."""
        actor = task.actor
        assert actor is not None
        del actor.leases[task.lease_id]
        actor.ending.discard(task.lease_id)
        task.actor = None
        task.result = result
        task.failure = None
        task.state = SUCCEEDED
        task.end_time = now
        task.task_class.unfinished -= 1

    def count_alone(self, tasks: list[Task], now: float) -> None:
        """Counts what `succeed_alone` ended."""
        statistics, count = self.statistics, len(tasks)
        statistics.by_state[RUNNING] -= count
        statistics.by_state[SUCCEEDED] += count
        statistics.unfinished_bytes -= sum([len(task.body) for task in tasks])
        statistics.count_outcomes(tasks, now)
        if self.allowances.held:
            for task in tasks:
                self.allowances.release(task)
        self.retention.keep(tasks)
        self.finished += tasks

    def finish(self, task: Task, state: TaskState, now: float, failure: Failure) -> None:
        """Ends a task that did not succeed, and with it all that depends on it."""
        ending = [(task, state, failure)]
        while ending:
            task, state, failure = ending.pop()
            if task.final:
                continue
            self._leave(task)
            task.failure = failure
            self._end(task, state, now)
            ending.extend(
                (child, TaskState.FAILED, dependencies.failure_of(task)) for child in dependencies.doomed(task)
            )

    def revoke(self, actor: Actor, lease: LeaseName) -> None:
        if actor.session:
            self.revoked.setdefault(actor.session, []).append(lease)

    def forget(self, tasks: list[Task]) -> None:
        for task in tasks:
            del self.tasks[task.task_id]
        self.statistics.forgotten += len(tasks)
        self.forgotten += len(tasks)

    @property
    def changed(self) -> bool:
        """Whether the last event left something for the journal."""
        return bool(
            self.submitted or self.returned or self.finished or self.leased or self.forgotten or self.roster.changed
        )

    def take_records(self, now: float) -> Persist | None:
        """What the journal must keep of the last event; to be followed by the clearing of `finished`."""
        if not self.changed:
            return None
        persist = Persist(
            now + self.journal_offset,
            self.submitted,
            self.returned,
            self.finished,
            self.leased,
            self.forgotten,
            self.roster.pauses,
            self.roster.actor_notes,
            self.roster.kind_notes,
        )
        self.submitted, self.returned, self.leased, self.forgotten = [], [], [], 0
        if self.roster.changed:
            self.roster.clear()
        return persist

    def _end(self, task: Task, state: TaskState, now: float) -> None:
        statistics = self.statistics
        statistics.by_state[task.state] -= 1
        statistics.by_state[state] += 1
        statistics.unfinished_bytes -= len(task.body)
        statistics.count_outcomes((task,), now)
        self.allowances.release(task)
        task.state = state
        task.end_time = now
        task.task_class.unfinished -= 1
        self.retention.keep([task])
        self.finished.append(task)

    def _note_return(self, task: Task, now: float) -> None:
        time = now + self.journal_offset
        self.returned.append(Returned(task.number, task.attempts, task.failures, task.losses, time))

    def _leave(self, task: Task) -> None:
        """Out of the queue or off its actor, wherever it is."""
        if task.actor is not None:
            self._unlease(task)
        else:
            self._leave_queue(task)

    def _leave_queue(self, task: Task) -> None:
        if task.state is QUEUED:
            # The queue tells live entries by the state.
            self.statistics.by_state[QUEUED] -= 1
            self.statistics.by_state[WAITING] += 1
            task.state = WAITING
            self.queue.discard(task)

    def _unlease(self, task: Task) -> None:
        actor = task.actor
        assert actor is not None
        del actor.leases[task.lease_id]
        actor.ending.discard(task.lease_id)
        task.actor = None
