"""Whether a batch of tasks is accepted, whole or not at all, by the limits of the queue and of its owner."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

from parlmesh import limits
from parlmesh.errors import FailedPrecondition, InvalidInput, PermissionDenied, ResourceExhausted
from parlmesh.security.quotas import QuotaConfig
from parlmesh.token_bucket import Rates

from ...config import NamespaceConfig, QueueConfig
from .. import dependencies
from ..actors.placement import Fleet
from ..statistics import Statistics
from ..task import ANYWHERE, Placement, Priority, Task

# Plain numbers, because they are read for every task.
LONGEST_ID, LONGEST_KIND, LONGEST_SUBMITTER = limits.TASK_ID.most, limits.KIND.most, limits.SUBMITTER.most
LOWEST, HIGHEST = limits.PRIORITY.least, limits.PRIORITY.most
NAMED_KINDS = 50
# A status travels in headers, which have little room.
NAMED_CHARACTERS = 1000
SHORTEST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 30.0
# The retry hint when no task ended lately, so that the rate is unknown.
USUAL_RETRY_SECONDS = 1.0

# Bytes that a name takes besides its letters.
NAME_BYTES = 64

# Kinds and submitters that passed before: they are few, and looking one up is faster than checking its letters.
MAX_GOOD_NAMES = 4096
_good_names: set[str] = set()


def check_size(count: int) -> None:
    """Comes first: nothing else is checked in a request that is too long."""
    limits.TASKS.check(count, "the request")


def select_new(
    tasks: Sequence[Task], known: Mapping[str, Task], config: QueueConfig, payload_bytes: Callable[[bytes], int]
) -> dict[str, Task]:
    """The tasks that are not known yet, by id. Every id must be set. `payload_bytes` measures the payload in a body."""
    new: dict[str, Task] = {}
    dependent = False
    max_payload_bytes = config.max_payload_bytes
    for task in tasks:
        task_id = task.task_id
        if task_id in known:
            continue
        if task_id in new:
            raise InvalidInput(
                f'task id "{task_id}" is given twice in one request', reason="DUPLICATE_TASK_ID", task_id=task_id
            )
        _check(task, config)
        # The first comparison is cheap, and true for few.
        if len(task.body) > max_payload_bytes and (size := payload_bytes(task.body)) > max_payload_bytes:
            raise InvalidInput(
                f'payload of task "{task_id}" has {size} bytes; the limit is {max_payload_bytes} '
                "(queue.max_payload_bytes)",
                reason="PAYLOAD_TOO_LARGE",
                task_id=task_id,
            )
        new[task_id] = task
        dependent = dependent or bool(task.dependencies)
    if dependent:
        dependencies.check(new, known)
    return new


def check_kinds(new: Mapping[str, Task], known: Collection[str], fleet: Fleet, config: QueueConfig) -> None:
    """Refuses tasks of unknown kinds. `known` is bounded and may have lost a kind that an actor still has."""
    if not config.refuse_unknown_kinds or not known:
        return
    for task in new.values():
        if task.kind not in known and task.kind not in fleet.present_kinds():
            raise FailedPrecondition(
                f'no actor has the kind "{task.kind}" of task "{task.task_id}"; known kinds: {_listed(known)}',
                reason="UNKNOWN_KIND",
                kind=task.kind,
                task_id=task.task_id,
            )


def _listed(kinds: Collection[str]) -> str:
    text = ", ".join(sorted(islice(kinds, NAMED_KINDS)))
    return text if len(text) <= NAMED_CHARACTERS else f"{text[:NAMED_CHARACTERS]}…"


def check_namespace_limits(task: Task, allowed: NamespaceConfig) -> None:
    """Raises PermissionDenied for requests that exceed a namespace's limits. A task without a run_timeout gets the
    operator's."""
    highest = Priority[allowed.max_priority.upper()]
    if highest < task.priority <= HIGHEST:
        raise PermissionDenied(
            f"priority of {_owner(task)} is {Priority(task.priority).name}; the namespace may go up to {highest.name} "
            "(namespace.max_priority)",
            reason="PRIORITY_NOT_ALLOWED",
        )
    if task.run_timeout is not None and task.run_timeout > allowed.max_run_seconds:
        raise PermissionDenied(
            f"run_timeout of {_owner(task)} is {task.run_timeout:g} s; the namespace may go up to "
            f"{allowed.max_run_seconds:g} s (namespace.max_run_seconds)",
            reason="RUN_TIMEOUT_NOT_ALLOWED",
        )


def check_room(new: Mapping[str, Task], statistics: Statistics, now: float, config: QueueConfig) -> None:
    """Refuses tasks that the queue cannot hold; the retry hint follows the present rate of outcomes."""
    if not new:
        # Known ids change nothing, even if the limits have changed since.
        return
    held_tasks, held_bytes = statistics.unfinished, statistics.unfinished_bytes
    count, size = len(new), sum([len(task.body) for task in new.values()])
    if count > config.max_tasks or size > config.max_bytes:
        raise ResourceExhausted(
            f"the request has {count} tasks of {size} bytes; the queue holds at most {config.max_tasks} tasks "
            f"of {config.max_bytes} bytes (queue.max_tasks, queue.max_bytes)",
            reason="QUEUE_FULL",
        )
    excess = held_tasks + count - config.max_tasks
    if excess <= 0 and held_bytes + size <= config.max_bytes:
        return
    rate = statistics.rate(now)
    wait = max(excess, 1) / rate if rate > 0 else USUAL_RETRY_SECONDS
    raise ResourceExhausted(
        f"the queue holds {held_tasks} unfinished tasks of {held_bytes} bytes and has no room for {count} more "
        f"(queue.max_tasks is {config.max_tasks}, queue.max_bytes {config.max_bytes})",
        reason="QUEUE_FULL",
        retry_after_seconds=min(LONGEST_RETRY_SECONDS, max(SHORTEST_RETRY_SECONDS, wait)),
        queued=held_tasks,
        limit=config.max_tasks,
    )


def _check(task: Task, config: QueueConfig) -> None:
    """Checks a task against the table of limits. Most tasks are plain and pass with a few comparisons."""
    if not task.kind:
        raise InvalidInput(f'task "{task.task_id}" has no kind', reason="MISSING_KIND", task_id=task.task_id)
    if not (
        len(task.task_id) <= LONGEST_ID
        and len(task.kind) <= LONGEST_KIND
        and len(task.submitter) <= LONGEST_SUBMITTER
        and LOWEST <= task.priority <= HIGHEST
        and task.task_id.isprintable()
        and task.kind in _good_names
        and task.submitter in _good_names
    ):
        owner = _owner(task)
        limits.TASK_ID.check_text(task.task_id)
        limits.KIND.check_text(task.kind, owner)
        limits.SUBMITTER.check_text(task.submitter, owner)
        limits.PRIORITY.check(task.priority, owner)
        if len(_good_names) >= MAX_GOOD_NAMES:
            _good_names.clear()
        _good_names.update((task.kind, task.submitter))
    if task.max_attempts:
        limits.MAX_ATTEMPTS.check(task.max_attempts, _owner(task))
    if task.queue_timeout is not None:
        limits.QUEUE_TIMEOUT.check(task.queue_timeout, _owner(task))
    if task.run_timeout is not None:
        limits.RUN_TIMEOUT.check(task.run_timeout, _owner(task))
    if task.placement is not ANYWHERE:
        _check_placement(task)
    if task.dependencies and len(task.dependencies) > config.max_dependencies:
        raise InvalidInput(
            f'task "{task.task_id}" has {len(task.dependencies)} dependencies; the limit is '
            f"{config.max_dependencies} (queue.max_dependencies)",
            reason="TOO_MANY_DEPENDENCIES",
            task_id=task.task_id,
        )


def _check_placement(task: Task) -> None:
    owner = f"the placement of {_owner(task)}"
    limits.NODE_ID.check_text(task.placement.node_id, owner)
    check_labels(task.placement.labels, owner)


def check_labels(labels: Collection[tuple[str, str]], owner: str) -> None:
    limits.LABELS.check(len(labels), owner)
    for name, value in labels:
        limits.LABEL_NAME.check_text(name, owner)
        limits.LABEL_VALUE.check_text(value, owner)


def _owner(task: Task) -> str:
    return f'task "{task.task_id[: limits.SHOWN]}"'


def owner_in(submitter: str) -> str:
    """The owner of a task from a journal, which has only the submitter: its namespace, or else the submitter."""
    namespace, slash, _ = submitter.partition("/")
    return f"{namespace}/" if slash else submitter


def _weight(task: Task) -> int:
    """Bytes that a task holds: its payload, and the names in its dependencies and placement."""
    size = len(task.body)
    if task.dependencies:
        size += sum(map(len, task.dependencies)) + NAME_BYTES * len(task.dependencies)
    if task.placement is not ANYWHERE:
        node_id, labels, _ = task.placement
        size += len(node_id) + sum([len(name) + len(value) + 2 * NAME_BYTES for name, value in labels])
    return size


class Allowances:
    """Limits on the unfinished tasks of each owner: their number, bytes and placements, and how often they come. Owners
    without unfinished tasks are not kept.

    An owner is an identity, or all identities of a namespace together. Without security tasks have no owner, and
    only the queue's own limits apply.
    """

    def __init__(self, quotas: QuotaConfig) -> None:
        self._quotas = quotas
        self._rates: Rates[str] = Rates(quotas.tasks_per_second)
        self.held: dict[str, tuple[int, int]] = {}
        """Unfinished tasks and their bytes, by owner."""
        # Numbers of unfinished tasks by owner, kind and placement; only tasks that have a placement.
        self._placed: dict[str, Counter[tuple[str, Placement]]] = {}

    def check(self, owner: str, new: Sequence[Task], now: float) -> None:
        """Raises ResourceExhausted when the owner may not submit these now."""
        quotas, count, size = self._quotas, len(new), sum([_weight(task) for task in new])
        tasks, held_bytes = self.held.get(owner, (0, 0))
        if tasks + count > quotas.tasks:
            raise self._refusal(
                owner, f"has {tasks} unfinished tasks and submits {count}", "tasks", quotas.tasks, "TOO_MANY_OWN_TASKS"
            )
        if held_bytes + size > quotas.task_bytes:
            what = f"has unfinished tasks of {held_bytes} bytes and submits {size}"
            raise self._refusal(owner, what, "task_bytes", quotas.task_bytes, "TOO_MANY_OWN_TASKS")
        if (places := self._places(owner, new)) > quotas.placements:
            what = f"would have unfinished tasks of {places} different placements"
            raise self._refusal(owner, what, "placements", quotas.placements, "TOO_MANY_OWN_PLACEMENTS")
        if (wait := self._rates.wait(owner, now, count)) > 0:
            what, rate = f"submits {count} tasks too soon", f"{quotas.tasks_per_second:g}"
            raise self._refusal(owner, what, "tasks_per_second", rate, "TASKS_TOO_OFTEN", wait)

    def take(self, owner: str, new: Sequence[Task], now: float) -> None:
        """Makes tasks the owner's; they count until they end."""
        self._rates.take(owner, now, len(new))
        for task in new:
            task.owner = owner
            self._place(task)
        self._hold(owner, len(new), sum([_weight(task) for task in new]))

    def take_again(self, tasks: Iterable[Task]) -> None:
        """Counts the unfinished tasks of a journal."""
        for task in tasks:
            task.owner = owner_in(task.submitter)
            if task.owner:
                self._hold(task.owner, 1, _weight(task))
                self._place(task)

    def release(self, task: Task) -> None:
        """Stops counting a task that has ended."""
        if task.owner:
            self._hold(task.owner, -1, -_weight(task))
            if task.placement != ANYWHERE:
                placed, key = self._placed[task.owner], (task.kind, task.placement)
                placed[key] -= 1
                if not placed[key]:
                    del placed[key]
                if not placed:
                    del self._placed[task.owner]

    def _place(self, task: Task) -> None:
        if task.placement != ANYWHERE:
            self._placed.setdefault(task.owner, Counter())[task.kind, task.placement] += 1

    def _places(self, owner: str, new: Sequence[Task]) -> int:
        """How many placements the owner would have with these tasks."""
        fresh = {(task.kind, task.placement) for task in new if task.placement != ANYWHERE}
        if not fresh:
            # Most tasks have no placement; tasks that the owner already has were checked before.
            return 0
        placed = self._placed.get(owner, Counter())
        return len(placed) + sum(key not in placed for key in fresh)

    def _hold(self, owner: str, count: int, size: int) -> None:
        tasks, held_bytes = self.held.get(owner, (0, 0))
        if tasks + count > 0:
            self.held[owner] = (tasks + count, held_bytes + size)
        else:
            self.held.pop(owner, None)

    def _refusal(
        self, owner: str, what: str, setting: str, limit: object, reason: str, wait: float = USUAL_RETRY_SECONDS
    ) -> ResourceExhausted:
        return ResourceExhausted(
            f'"{owner}" {what}; the limit is {limit} (security.quotas.{setting})',
            reason=reason,
            retry_after_seconds=max(SHORTEST_RETRY_SECONDS, min(LONGEST_RETRY_SECONDS, wait)),
            owner=owner,
            limit=limit,
        )
