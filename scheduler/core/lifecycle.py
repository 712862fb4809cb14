"""The transitions of a task's life, each with its counters, its journal record and its effect on others.

Every change of a task's state happens here. Nothing here decides who may cause one.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

from ..config import SchedulerConfig
from . import dependencies
from .actions import Decided, Returned
from .actors.known_actors import Roster
from .actors.placement import ASSIGNMENT_BYTES, SMALL_BODY_BYTES, Actor, Fleet, message_bytes
from .chrome_trace import Trace
from .queue.namespace_shares import Shares
from .queue.ready_queue import ReadyQueue
from .queue.submission_limits import Allowances
from .queue.task_class import TaskClass
from .retention import Retention
from .retries import quarantined, retry_delay, was_last
from .statistics import Statistics
from .task import (
    NO_LEASE,
    NO_RESULT,
    NOT_BEGUN,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    WAITING,
    AttemptEnd,
    Failure,
    Leaps,
    LeaseName,
    Task,
    TaskState,
)
from .timers import Endings, Timers


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
        self.decided = Decided()
        self.tasks: dict[str, Task] = {}
        self.queue = ReadyQueue(config.queue.aging_seconds, Shares(config))
        self.fleet = Fleet(rng)
        self.timers = Timers()
        self.endings = Endings(config.dispatch.prefetch_seconds)
        self.retention = Retention(config.retention, 2 * (config.queue.max_payload_bytes + ASSIGNMENT_BYTES))
        self.statistics = Statistics(now)
        self.trace = Trace(config.retention.trace_events)
        self.roster = Roster(self.fleet, self.decided, config.retention.kind_seconds)
        self.allowances = Allowances(config.security.quotas)
        # Wall clock minus `now`, for display; it may jump.
        self.wall_offset = wall_time - now
        # Journal clock minus `now`; that clock continues where the last start left it.
        self.journal_offset = wall_time - now
        self.next_number = 1
        self.last_lease = lease_floor
        # Whether first leases wait for their commit too; set while the store cannot be written.
        self.first_leases_wait = False
        self._leaps = Leaps(entropy)
        # Classes that gained ready tasks, for which actors must be found.
        self.fresh: dict[TaskClass, None] = {}
        # Tasks to end because a parent did not succeed, and why.
        self.doomed: deque[tuple[Task, Failure]] = deque()

    def count(self, state: TaskState) -> int:
        """How many of the known tasks are in a state."""
        return (self.retention if state >= SUCCEEDED else self.statistics).by_state[state]

    def admit(self, tasks: Iterable[Task], now: float) -> None:
        """Enters new tasks: each becomes ready, waits for its parents, or ends because a parent failed."""
        number = first = self.next_number
        ready: list[Task] = []
        dependent: list[Task] = []
        for task in tasks:
            task.number = number
            number += 1
            task.submit_time = now
            self.enter(task)
            self.decided.submitted.append(task)
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
            # Most tasks are small; this saves them a step.
            task_class = self.queue.task_class(task.kind, task.placement)
        task.task_class = task_class = task_class or self._class_of(task)
        task_class.unfinished += 1
        self.statistics.by_state[WAITING] += 1
        self.statistics.unfinished_bytes += len(task.body)

    def enter_all(self, tasks: Sequence[Task]) -> None:
        """Enters tasks of a journal that are in `self.tasks` already."""
        last: Task | None = None
        for task in tasks:
            # Neighbours mostly have the same kind, placement and size, and so the same class.
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
        """Queues tasks that wait only for a slot. All must be in the same state."""
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
        self.fresh.update(dict.fromkeys(self.queue.push(tasks)))

    def grant(self, tasks: list[Task], actor: Actor, now: float) -> None:
        """Leases tasks that `queue.take` returned."""
        count = len(tasks)
        by_state = self.statistics.by_state
        by_state[QUEUED] -= count
        by_state[RUNNING] += count
        lease_id, actor_id, leases = self.last_lease + self._leaps.next(), actor.actor_id, actor.leases
        expires_at = now + self.config.leases.duration_seconds
        again: list[Task] = []
        all_wait, count_wait = self.first_leases_wait, self.statistics.dispatch.add
        for task in tasks:
            count_wait(now - task.ready_time)
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
                # Not the time of the attempt before, if this one ends without a result.
                task.ran = 0.0
                task.expires_at = NOT_BEGUN
                again.append(task)
            task.leased_before = True
        self.last_lease = lease_id
        actor.credits -= count
        self.decided.leased += tasks
        if actor.even:
            self.endings.expect(actor, tasks, now)
        if again:
            self.decided.assigned_again.setdefault(actor, []).extend(again)
            later = set(again)
            tasks = [task for task in tasks if task not in later]
        if tasks:
            self.decided.assigned.setdefault(actor, []).extend(tasks)

    def withdraw(self, task: Task) -> None:
        """Takes a task out of the queue before any actor has it."""
        if task.state is QUEUED:
            # The queue tells live entries by the state.
            self._move(task, WAITING)
            self.queue.discard(task)

    def reclaim(self, task: Task, actor: Actor, now: float) -> None:
        """Gives a lost lease back to its actor; no other actor has had the task since."""
        self.withdraw(task)
        self._move(task, RUNNING)
        task.losses -= 1
        self.trace.remove_lost(task)
        self._bind(task, actor, now)
        self._note_return(task, now)
        self.decided.leased.append(task)

    def _bind(self, task: Task, actor: Actor, now: float) -> None:
        task.actor = actor
        task.actor_id = actor.actor_id
        task.expires_at = now + self.config.leases.duration_seconds
        actor.leases[task.lease_id] = task
        self.queue.hold(task)

    def hold(self, task: Task, actor: Actor, now: float) -> None:
        """Keeps a lease from a journal until its actor comes back or the lease expires."""
        self._move(task, RUNNING)
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
        """Ends the lease of a gone or silent actor. Its result still counts if it comes before the next lease."""
        actor_id = task.actor_id
        self._unlease(task)
        task.losses += 1
        self.statistics.lost_leases += 1
        failure = quarantined(task, actor_id, self.config.retries)
        if failure is not None:
            self.finish(task, TaskState.QUARANTINED, now, failure)
            return
        self.statistics.retried += 1
        task.end_time = now
        self.trace.add_lost(task)
        self._note_return(task, now)
        self.make_ready([task], now)

    def end_attempts(self, sender: Actor, results: Sequence[AttemptEnd], now: float) -> list[str]:
        """Ends the attempts that an actor reports; stale or false reports are only counted. Returns one sentence for
        each report that no honest actor would send."""
        tasks, statistics = self.tasks, self.statistics
        plain: list[Task] = []
        runs: defaultdict[str, list[float]] = defaultdict(list)
        max_bytes = self.config.queue.max_payload_bytes
        bad: list[str] = []
        if sender.quarantined:
            statistics.stale_results += len(results)
            return bad
        for task_id, lease_id, result, failure, ran in results:
            task = tasks.get(task_id)
            if (
                task is None
                or task.state >= SUCCEEDED
                or task.lease_id != lease_id
                or lease_id == NO_LEASE
                or (task.actor is not sender and not (task.actor is None and sender.had(task)))
            ):
                statistics.stale_results += 1
                if task is not None and task.lease_id == lease_id != NO_LEASE and task.actor_id != sender.actor_id:
                    bad.append(f'actor "{sender.actor_id}" answered for a lease of "{task.actor_id}"')
                continue
            task.ran = ran
            if len(result) > max_bytes:
                text = f"the result has {len(result)} bytes; the limit is {max_bytes} (queue.max_payload_bytes)"
                failure, result = Failure("INVALID_RESULT", text), b""
            if failure is NO_RESULT:
                bad.append(f'actor "{sender.actor_id}" sent neither a result nor a failure of task "{task_id}"')
            if failure is None and task.actor is not None and task.children is None:
                # By far the most frequent case: success under a lease that the sender holds. These are counted
                # together.
                del sender.leases[lease_id]
                sender.ending.discard(lease_id)
                task.actor = None
                task.result = result
                task.failure = None
                task.state = SUCCEEDED
                task.end_time = now
                task.task_class.unfinished -= 1
                plain.append(task)
            elif failure is None:
                self._succeed(task, result, now)
                sender.completed += 1
            else:
                self.fail_attempt(task, failure, now)
                sender.failed += 1
            runs[task.kind].append(ran)
        if plain:
            self._count_succeeded(plain, now)
            sender.completed += len(plain)
        for kind, seconds in runs.items():
            count, mean = len(seconds), sum(seconds) / len(seconds)
            sender.measure(count, mean, statistics.count_runs(kind, count, mean), self.config.dispatch.prefetch_seconds)
        return bad

    def fail_attempt(self, task: Task, failure: Failure, now: float) -> None:
        """Ends a failed attempt: the task waits for the next one, or fails."""
        if task.actor is None:
            self.trace.remove_lost(task)
        self._leave(task)
        task.lease_id = NO_LEASE
        task.failures += 1
        task.end_time = now
        retries = self.config.retries
        if was_last(task, failure, retries):
            self.finish(task, TaskState.FAILED, now, failure)
            return
        self._move(task, WAITING)
        self.statistics.retried += 1
        task.failure = failure
        self.trace.add_retried(task)
        task.wake_time = now + retry_delay(task.failures, retries, self.rng)
        self.timers.set(task.wake_time, task)
        self._note_return(task, now)

    def _succeed(self, task: Task, result: bytes, now: float) -> None:
        if task.actor is None:
            self.trace.remove_lost(task)
        self._leave(task)
        task.result = result
        task.failure = None
        self._end(task, SUCCEEDED, now)
        if task.children:
            self.make_ready(dependencies.release(task), now)

    def _count_succeeded(self, tasks: list[Task], now: float) -> None:
        """Counts running tasks that have succeeded and have no dependents."""
        statistics, count = self.statistics, len(tasks)
        statistics.by_state[RUNNING] -= count
        statistics.by_state[SUCCEEDED] += count
        statistics.unfinished_bytes -= sum([len(task.body) for task in tasks])
        latencies: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        for task in tasks:
            latencies[task.kind, task.priority].append(now - task.submit_time)
        for (kind, priority), seconds in latencies.items():
            statistics.count_outcomes(kind, priority, seconds, now)
        if self.allowances.held:
            for task in tasks:
                self.allowances.release(task)
                self.fresh.update(dict.fromkeys(self.queue.release(task)))
        self.retention.keep(tasks)
        self.decided.finished += tasks

    def finish(self, task: Task, state: TaskState, now: float, failure: Failure) -> None:
        """Ends a task that did not succeed; tasks that depend on it end with `end_doomed`."""
        if task.final:
            return
        self._leave(task)
        task.failure = failure
        self._end(task, state, now)
        if children := dependencies.doomed(task):
            why = dependencies.failure_of(task)
            self.doomed.extend((child, why) for child in children)

    def give_up_waiting(self, task: Task, now: float) -> None:
        """Ends a task that got no slot in time."""
        absent = self.fleet.absent(task.task_class)
        why = f"{absent}, and none came" if absent else "no slot was free"
        failure = Failure("QUEUE_TIMEOUT", f"{why} within {task.queue_timeout} s (queue_timeout)")
        self.finish(task, TaskState.FAILED, now, failure)

    def end_doomed(self, now: float, most: int) -> None:
        """Ends tasks whose parents failed, and their dependents in turn, up to `most` per call: there may be hundreds
        of thousands, and all other callers would wait for them."""
        while self.doomed and most:
            task, failure = self.doomed.popleft()
            if not task.final:
                self.finish(task, TaskState.FAILED, now, failure)
                most -= 1

    def revoke(self, actor: Actor, lease: LeaseName) -> None:
        if actor.session:
            self.decided.revoked.setdefault(actor.session, []).append(lease)

    def forget(self, tasks: list[Task]) -> None:
        for task in tasks:
            del self.tasks[task.task_id]
            if type(task) is Task:
                # A reader that has not taken the outcome yet keeps the task, but does not need its body.
                task.body = b""
        self.statistics.forgotten += len(tasks)
        self.decided.forgotten += len(tasks)

    def _end(self, task: Task, state: TaskState, now: float) -> None:
        self._move(task, state)
        self.statistics.unfinished_bytes -= len(task.body)
        self.statistics.count_outcomes(task.kind, task.priority, (now - task.submit_time,), now)
        self.allowances.release(task)
        task.end_time = now
        task.task_class.unfinished -= 1
        self.retention.keep([task])
        self.decided.finished.append(task)

    def _move(self, task: Task, state: TaskState) -> None:
        """Moves one task; `make_ready`, `grant` and `end_attempts` do the same for many."""
        by_state = self.statistics.by_state
        by_state[task.state] -= 1
        by_state[state] += 1
        task.state = state

    def _note_return(self, task: Task, now: float) -> None:
        numbers = task.number, task.attempts, task.failures, task.losses
        self.decided.returned.append(Returned(*numbers, now + self.journal_offset))

    def _leave(self, task: Task) -> None:
        """Takes a task out of the queue or off its actor, wherever it is."""
        if task.actor is not None:
            self._unlease(task)
        else:
            self.withdraw(task)

    def _unlease(self, task: Task) -> None:
        actor = task.actor
        assert actor is not None
        del actor.leases[task.lease_id]
        actor.ending.discard(task.lease_id)
        task.actor = None
        self.fresh.update(dict.fromkeys(self.queue.release(task)))
