"""Exports the lists of the pages: CSV for spreadsheets, JSON for programs. The number of rows is bounded."""

import csv
import io
import json
from typing import Any

from parlmesh.errors import InvalidInput

from . import number_format as figures
from .page_request import View
from .pages.tasks import request_of

MOST_ROWS = 10_000


async def exported(view: View) -> tuple[str, str, str]:
    """The file's text, its type and its name."""
    what, wanted = view.asked("what"), view.asked("format", "json")
    readers = {"tasks": _tasks, "actors": _actors, "runs": _runs, "history": _history}
    if what not in readers or wanted not in ("csv", "json"):
        raise InvalidInput(f"what must be one of {', '.join(readers)}, and format csv or json")
    rows = await readers[what](view)
    if wanted == "json":
        return json.dumps(rows, indent=1), "application/json", f"{what}.json"
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else ["nothing"])
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue(), "text/csv", f"{what}.csv"


def _cell(value: Any) -> Any:
    """Escapes text that a spreadsheet would treat as a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


async def _tasks(view: View) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    request = request_of(view, 1_000)
    while len(rows) < MOST_ROWS:
        answer = await view.fleet.tasks(request)
        for task in answer.tasks:
            outcome = task.outcome
            rows.append(
                {
                    "task_id": task.spec.task_id,
                    "kind": task.spec.kind,
                    "priority": figures.priority(task.spec.priority),
                    "state": figures.task_state(task.state),
                    "attempts": task.attempts,
                    "actor_id": outcome.actor_id or task.actor_id,
                    "submitter": task.spec.submitter,
                    "submit_time": figures.moment(task.submit_time),
                    "queued_seconds": outcome.queued.seconds + outcome.queued.nanos / 1e9,
                    "ran_seconds": outcome.ran.seconds + outcome.ran.nanos / 1e9,
                    "failure": outcome.failure.reason,
                    "message": outcome.failure.message,
                }
            )
        request.page_token = answer.next_page_token
        if not request.page_token:
            break
    return rows[:MOST_ROWS]


async def _actors(view: View) -> list[dict[str, Any]]:
    return [
        {
            "actor_id": actor.actor_id,
            "node_id": actor.node_id,
            "state": figures.actor_state(actor.state),
            "slots": actor.slots,
            "running_tasks": actor.running_tasks,
            "completed_tasks": actor.completed_tasks,
            "failed_tasks": actor.failed_tasks,
            "policy_version": actor.policy_version,
            "last_heartbeat_time": figures.moment(actor.last_heartbeat_time),
        }
        for actor in await view.fleet.actors()
    ]


async def _runs(view: View) -> list[dict[str, Any]]:
    return [
        {
            "run_id": training.run_id,
            "state": figures.run_state(training.state),
            "steps": training.progress.steps,
            "policy_version": training.progress.policy_version,
            "episode_return": training.progress.episode_return,
            "evaluation_return": training.progress.evaluation_return,
            "policy_lag": training.progress.policy_lag,
            "learner_idle_ratio": training.progress.learner_idle_ratio,
            "actor_idle_ratio": training.progress.actor_idle_ratio,
        }
        for training in await view.fleet.trainings()
    ]


async def _history(view: View) -> list[dict[str, Any]]:
    return [sample._asdict() for sample in view.pulse.history.recent]
