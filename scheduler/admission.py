"""Whether a batch of tasks is accepted: whole, or not at all. Looks, and changes nothing."""

from collections.abc import Collection, Mapping, Sequence

from parlmesh.errors import FailedPrecondition, InvalidInput, ResourceExhausted

from . import dependencies
from .config import QueueConfig
from .statistics import Statistics
from .task import Priority, Task

MAX_TASKS_PER_REQUEST = 10_000
LONGEST_NAME = 256
LOWEST, HIGHEST = int(Priority.BACKGROUND), int(Priority.CRITICAL)
SHORTEST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 30.0
# When nothing was finished lately, so that nothing is known.
USUAL_RETRY_SECONDS = 1.0


def check_size(count: int) -> None:
    """Comes first: nothing else is looked at in a request that is too long."""
    if count > MAX_TASKS_PER_REQUEST:
        raise InvalidInput(
            f"the request has {count} tasks; at most {MAX_TASKS_PER_REQUEST} are taken at once",
            reason="TOO_MANY_TASKS",
            tasks=count,
            limit=MAX_TASKS_PER_REQUEST,
        )


def select_new(tasks: Sequence[Task], known: Mapping[str, Task], config: QueueConfig) -> dict[str, Task]:
    """The tasks that are not known yet, by id. Every id must be set."""
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
        _check_names(task)
        _check_demands(task, config)
        if len(task.body) > max_payload_bytes:
            raise InvalidInput(
                f'payload of task "{task_id}" has {len(task.body)} bytes; the limit is {max_payload_bytes} '
                "(queue.max_payload_bytes)",
                reason="PAYLOAD_TOO_LARGE",
                task_id=task_id,
            )
        new[task_id] = task
        dependent = dependent or bool(task.dependencies)
    if dependent:
        dependencies.check(new, known)
    return new


def check_kinds(new: Mapping[str, Task], known_kinds: Collection[str], config: QueueConfig) -> None:
    if not config.refuse_unknown_kinds or not known_kinds:
        return
    for task in new.values():
        if task.kind not in known_kinds:
            raise FailedPrecondition(
                f'no actor has the kind "{task.kind}" of task "{task.task_id}"; '
                f"known kinds: {', '.join(sorted(known_kinds))}",
                reason="UNKNOWN_KIND",
                kind=task.kind,
                task_id=task.task_id,
            )


def check_room(new: Mapping[str, Task], statistics: Statistics, now: float, config: QueueConfig) -> None:
    """The present number of outcomes per second makes the retry hint."""
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


def _check_names(task: Task) -> None:
    if not task.kind:
        raise InvalidInput(f'task "{task.task_id}" has no kind', reason="MISSING_KIND", task_id=task.task_id)
    if len(task.task_id) <= LONGEST_NAME and len(task.kind) <= LONGEST_NAME and len(task.submitter) <= LONGEST_NAME:
        return
    for field, value in (("task_id", task.task_id), ("kind", task.kind), ("submitter", task.submitter)):
        if len(value) > LONGEST_NAME:
            raise InvalidInput(
                f'{field} "{value[:20]}…" has {len(value)} characters; the limit is {LONGEST_NAME}',
                reason="NAME_TOO_LONG",
                field=field,
            )


def _check_demands(task: Task, config: QueueConfig) -> None:
    if not LOWEST <= task.priority <= HIGHEST:
        raise InvalidInput(
            f'priority {task.priority} of task "{task.task_id}" is unknown; '
            f"it goes from {LOWEST} (BACKGROUND) to {HIGHEST} (CRITICAL)",
            reason="UNKNOWN_PRIORITY",
            task_id=task.task_id,
        )
    if task.queue_timeout is not None and task.queue_timeout < 0:
        raise InvalidInput(
            f'queue_timeout of task "{task.task_id}" is {task.queue_timeout} s; it must be 0 s or more',
            reason="INVALID_TIMEOUT",
            task_id=task.task_id,
        )
    if task.run_timeout is not None and task.run_timeout <= 0:
        raise InvalidInput(
            f'run_timeout of task "{task.task_id}" is {task.run_timeout} s; it must be more than 0 s',
            reason="INVALID_TIMEOUT",
            task_id=task.task_id,
        )
    if task.dependencies and len(task.dependencies) > config.max_dependencies:
        raise InvalidInput(
            f'task "{task.task_id}" has {len(task.dependencies)} dependencies; the limit is '
            f"{config.max_dependencies} (queue.max_dependencies)",
            reason="TOO_MANY_DEPENDENCIES",
            task_id=task.task_id,
        )
