"""The last attempts that ended, as a Chrome trace that opens in Perfetto. One process per actor, one row per slot."""

import json
from collections import deque
from typing import Any

from .task import Task

MICROSECONDS = 1e6
MAX_EVENTS_PER_TRACE = 20_000


class Trace:
    """A bounded memory of (end, start, submit time, id, kind, state, actor, attempt, seconds in the handler)."""

    def __init__(self, max_events: int) -> None:
        self._events: deque[tuple[float, float, float, str, str, str, str, int, float]] = deque(maxlen=max_events)

    def add(self, task: Task, state: str) -> None:
        """An attempt that ended at `task.end_time`."""
        self._events.append(
            (
                task.end_time,
                # A task held in advance ran only at the end of its lease.
                max(task.lease_time, task.end_time - task.ran) if task.ran else task.lease_time,
                task.submit_time,
                task.task_id,
                task.kind,
                state,
                task.actor_id,
                task.attempts,
                task.ran,
            )
        )

    def to_json(self, now: float, seconds: float, wall_offset: float) -> str:
        """Of the attempts that ended in the window the newest that fit in a message; the rest are counted."""
        window = [event for event in self._events if event[0] >= now - seconds]
        shown = sorted(window[-MAX_EVENTS_PER_TRACE:], key=lambda event: event[1])
        processes: dict[str, int] = {}
        rows: dict[str, list[float]] = {}
        events: list[dict[str, Any]] = []
        for end, start, submit, task_id, kind, state, actor_id, attempt, ran in shown:
            process = processes.setdefault(actor_id, len(processes) + 1)
            events.append(
                {
                    "name": kind,
                    "cat": "task",
                    "ph": "X",
                    "pid": process,
                    "tid": _row(rows.setdefault(actor_id, []), start, end),
                    "ts": round((start + wall_offset) * MICROSECONDS),
                    "dur": max(1, round((end - start) * MICROSECONDS)),
                    "args": {
                        "task_id": task_id,
                        "state": state,
                        "attempt": attempt,
                        "queued_ms": round((start - submit) * 1e3, 3),
                        "ran_ms": round(ran * 1e3, 3),
                    },
                }
            )
        names = [
            {"name": "process_name", "ph": "M", "pid": process, "args": {"name": actor_id}}
            for actor_id, process in processes.items()
        ]
        left_out = len(window) - len(shown)
        return json.dumps({"traceEvents": names + events, "otherData": {"left_out": left_out}}, separators=(",", ":"))


def _row(ends: list[float], start: float, end: float) -> int:
    """The first row that is free at `start`."""
    for row, busy_until in enumerate(ends):
        if busy_until <= start:
            ends[row] = end
            return row + 1
    ends.append(end)
    return len(ends)
