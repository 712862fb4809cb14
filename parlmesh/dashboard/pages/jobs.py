"""Jobs, which are tasks with a common id prefix: what determined their duration."""

import asyncio
from collections import defaultdict
from typing import Any

from parlmesh.orchestration.report.report import report_of
from parlmesh.orchestration.report.trace import Attempt, attempts_in
from parlmesh.v1 import scheduler_service_pb2 as pb

from .. import number_format as figures
from ..page_request import View

WINDOW_SECONDS = 3_600
MOST_ATTEMPTS = 5_000
TRACE_AGE_SECONDS = 10.0
"""A large trace is fetched less often than the rest."""
MOST_JOBS = 200
MOST_SEGMENTS = 200


async def _attempts(view: View) -> list[Attempt]:
    request = pb.GetTraceRequest(seconds=WINDOW_SECONDS, max_attempts=MOST_ATTEMPTS)
    return attempts_in(await view.fleet.trace(request, TRACE_AGE_SECONDS))


async def jobs(view: View) -> dict[str, Any]:
    """Jobs of the last hour: tasks JOB/…, grouped by the part before the last slash."""
    found: dict[str, list[Attempt]] = defaultdict(list)
    attempts = await _attempts(view)
    for attempt in attempts:
        if "/" in attempt.task_id:
            found[attempt.task_id.rpartition("/")[0]].append(attempt)
    newest = sorted(found.items(), key=lambda job: -max(each.end for each in job[1]))[:MOST_JOBS]
    return {
        "jobs": [
            {
                "id": name,
                "tasks": len({each.task_id for each in members}),
                "failed": sum(1 for each in members if each.failed),
                "work": figures.seconds(sum(each.seconds for each in members)),
                "wall": figures.seconds(max(each.end for each in members) - min(each.submit for each in members)),
                "ended": f"{figures.seconds(max(0.0, view.pulse.now() - max(each.end for each in members)))} ago",
            }
            for name, members in newest
        ],
        "full": len(attempts) >= MOST_ATTEMPTS,
        "most": MOST_ATTEMPTS,
    }


async def job(view: View) -> dict[str, Any]:
    """The critical path of a job."""
    name = view.asked("id")
    slots = sum(actor.slots for actor in view.pulse.actors if actor.state == pb.ACTOR_STATE_READY)
    report = await asyncio.to_thread(report_of, await _attempts(view), name, slots)
    wall = max(report.wall, 1e-9)
    return {
        "job": name,
        "job_facts": [
            ("tasks", f"{report.tasks:,}, {report.failed:,} failed, {report.retried:,} attempts repeated"),
            ("wall clock", figures.seconds(report.wall)),
            ("work", f"{figures.seconds(report.work)} of all attempts together"),
            ("critical path", f"{figures.seconds(report.critical_path)}: no number of actors is faster"),
            ("parallelism", f"{report.achieved_parallelism:.2f} achieved, {report.possible_parallelism:.2f} possible"),
            ("at once", f"{report.most_at_once:,} at most, on {figures.counted(report.slots, 'slot')}"),
            ("with one more slot", f"{figures.seconds(report.with_one_more)} estimated"),
        ],
        "parts": [
            {"part": part, "seconds": figures.seconds(value), "width": f"{value / wall * 100:.1f}"}
            for part, value in report.parts.items()
            if value > 0
        ],
        "chain": [
            {
                "task": segment.task_id,
                "part": segment.part,
                "seconds": figures.seconds(segment.seconds),
                "width": f"{segment.seconds / wall * 100:.1f}",
            }
            for segment in report.chain[:MOST_SEGMENTS]
        ],
        "hidden": max(0, len(report.chain) - MOST_SEGMENTS),
        "unknown": report.unknown,
    }
