"""A job as a Perfetto file: its attempts by actor, and its critical chain as a separate track."""

import json
from typing import Any

from .critical_path import PARTS
from .report import Report
from .trace import JobTrace

_MICROSECONDS = 1e6


def perfetto_of(job: JobTrace, report: Report) -> str:
    """Chrome's trace-event JSON."""
    actors = sorted({attempt.actor_id for attempt in (*job.tasks.values(), *job.retried)})
    process = {actor: number + 2 for number, actor in enumerate(actors)}
    events: list[dict[str, Any]] = [_name(1, f"the chain of {job.job}")]
    events += [_name(number, actor) for actor, number in process.items()]
    events += [
        _slice(f"{PARTS[segment.part]}: {segment.task_id}", 1, 1, segment.start, segment.end, {"part": segment.part})
        for segment in report.chain
    ]
    events += [
        _slice(
            attempt.task_id,
            process[attempt.actor_id],
            attempt.row,
            attempt.start,
            attempt.end,
            {"kind": attempt.kind, "state": attempt.state, "attempt": attempt.number},
        )
        for attempt in (*job.tasks.values(), *job.retried)
    ]
    return json.dumps({"traceEvents": events})


def _name(process: int, name: str) -> dict[str, Any]:
    return {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}


def _slice(name: str, process: int, row: int, start: float, end: float, about: dict[str, Any]) -> dict[str, Any]:
    microseconds = {"ts": round(start * _MICROSECONDS), "dur": max(1, round((end - start) * _MICROSECONDS))}
    return {"name": name, "cat": "task", "ph": "X", "pid": process, "tid": row, **microseconds, "args": about}
