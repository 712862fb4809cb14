"""Attempts that ended, as a Chrome trace that opens in Perfetto. One process per actor, one row per slot."""

import json
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from .task import Task

MICROSECONDS = 1e6
MAX_EVENTS = 20_000
# Leaves room in a message of 8 MiB.
MAX_BYTES = 4 * 1024 * 1024


class Attempt(NamedTuple):
    """One attempt, on the scheduler's clock."""

    start: float
    end: float
    submit: float
    task_id: str
    kind: str
    state: str
    actor_id: str
    number: int
    ran: float
    dependencies: tuple[str, ...] = ()


def attempt_of(task: Task, state: str) -> Attempt:
    """The last attempt of a task, which ended at `task.end_time`."""
    # A prefetched task ran only at the end of its lease.
    start = max(task.lease_time, task.end_time - task.ran) if task.ran else task.lease_time
    return Attempt(
        start,
        task.end_time,
        task.submit_time,
        task.task_id,
        task.kind,
        state,
        task.actor_id,
        task.attempts,
        task.ran,
        tuple(task.dependencies),
    )


class Trace:
    """Remembers attempts that failed or were lost with their actor, after which the task waited for another; the last
    attempts are read from the finished tasks."""

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        # By task and number; the first to end is the first to go.
        self._earlier: OrderedDict[tuple[str, int], Attempt] = OrderedDict()

    def add_retried(self, task: Task) -> None:
        self._add(task, "RETRIED")

    def add_lost(self, task: Task) -> None:
        self._add(task, "LOST")

    def remove_lost(self, task: Task) -> None:
        """The attempt was not lost: its actor came back for it, or its result did."""
        self._earlier.pop((task.task_id, task.attempts), None)

    def _add(self, task: Task, state: str) -> None:
        self._earlier.pop((task.task_id, task.attempts), None)
        self._earlier[task.task_id, task.attempts] = attempt_of(task, state)
        if len(self._earlier) > self._max_events:
            self._earlier.popitem(last=False)

    def attempts(
        self, finished: Iterable[Task], now: float, seconds: float, most: int = MAX_EVENTS, prefix: str = ""
    ) -> list[Attempt]:
        """Attempts that ended in the window, ordered by start; the newest if there are too many. `finished` is newest
        first."""
        recent = takewhile(lambda task: task.end_time >= now - seconds, finished)
        final = (
            attempt_of(task, task.state.name)
            for task in recent
            if task.task_id.startswith(prefix)
            and task.attempts
            # A task may end, by a cancel for example, while it waits for its next attempt.
            and (task.task_id, task.attempts) not in self._earlier
        )
        found = list(islice(final, most))
        # Newest first, like `finished`: they were added as they ended.
        earlier = takewhile(lambda attempt: attempt.end >= now - seconds, reversed(self._earlier.values()))
        found += islice((attempt for attempt in earlier if attempt.task_id.startswith(prefix)), most)
        found.sort(key=attrgetter("end"))
        return sorted(found[-most:])


def to_json(attempts: list[Attempt], wall_offset: float) -> str:
    """The attempts that fit into a message, those that ended last."""
    processes: dict[str, int] = {}
    rows: dict[str, list[float]] = {}
    placed = []
    for attempt in attempts:
        process = processes.setdefault(attempt.actor_id, len(processes) + 1)
        placed.append((attempt, process, _row(rows.setdefault(attempt.actor_id, []), attempt.start, attempt.end)))
    parts = [
        _dumps({"name": "process_name", "ph": "M", "pid": process, "args": {"name": actor_id}})
        for actor_id, process in processes.items()
    ]
    size = sum(map(len, parts))
    for attempt, process, row in sorted(placed, key=lambda one: one[0].end, reverse=True):
        part = _dumps(_event(attempt, process, row, wall_offset))
        size += len(part) + 1
        if size > MAX_BYTES:
            break
        parts.append(part)
    return '{"traceEvents":[' + ",".join(parts) + "]}"


def _dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _event(attempt: Attempt, process: int, row: int, wall_offset: float) -> dict[str, Any]:
    # Left out if empty, as for most tasks: a trace must fit into a message.
    dependencies = {"dependencies": attempt.dependencies} if attempt.dependencies else {}
    return {
        "name": attempt.kind,
        "cat": "task",
        "ph": "X",
        "pid": process,
        "tid": row,
        "ts": round((attempt.start + wall_offset) * MICROSECONDS),
        "dur": max(1, round((attempt.end - attempt.start) * MICROSECONDS)),
        "args": {
            "task_id": attempt.task_id,
            "state": attempt.state,
            "attempt": attempt.number,
            "queued_ms": round((attempt.start - attempt.submit) * 1e3, 3),
            "ran_ms": round(attempt.ran * 1e3, 3),
            **dependencies,
        },
    }


def _row(ends: list[float], start: float, end: float) -> int:
    """The first row that is free at `start`."""
    for row, busy_until in enumerate(ends):
        if busy_until <= start:
            ends[row] = end
            return row + 1
    ends.append(end)
    return len(ends)
