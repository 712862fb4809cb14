"""The list of tasks with its filters, and one task from submit to outcome."""

import asyncio
import json
from typing import Any

from google.protobuf.json_format import MessageToDict

from parlmesh.errors import InvalidInput
from parlmesh.orchestration.report.trace import LOST, attempts_in
from parlmesh.telemetry.log_files import LogFolder
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2

from .. import number_format as figures
from ..page_request import View

PAGE = 100
TASK_TRACE_SECONDS = 3_600
LONGEST_SHOWN = 20_000
LOG_LINES = 50

_UNFINISHED = (task_pb2.TASK_STATE_WAITING, task_pb2.TASK_STATE_QUEUED, task_pb2.TASK_STATE_RUNNING)
FILTERS: dict[str, tuple[str, tuple[task_pb2.TaskState.ValueType, ...]]] = {
    "": ("all", ()),
    "failed": ("failed only", (task_pb2.TASK_STATE_FAILED, task_pb2.TASK_STATE_QUARANTINED)),
    "unfinished": ("unfinished", _UNFINISHED),
    "waiting": ("waiting", (task_pb2.TASK_STATE_WAITING,)),
    "queued": ("queued", (task_pb2.TASK_STATE_QUEUED,)),
    "running": ("running", (task_pb2.TASK_STATE_RUNNING,)),
    "succeeded": ("succeeded", (task_pb2.TASK_STATE_SUCCEEDED,)),
    "cancelled": ("cancelled", (task_pb2.TASK_STATE_CANCELLED,)),
}


def request_of(view: View, size: int = PAGE) -> pb.ListTasksRequest:
    """The request for the filters in the query."""
    state = view.asked("state")
    if state not in FILTERS:
        raise InvalidInput(f"state is {state[:40]!a}; allowed are {', '.join(name or '(empty)' for name in FILTERS)}")
    return pb.ListTasksRequest(
        states=FILTERS[state][1],
        kind=view.asked("kind"),
        task_id_prefix=view.asked("id"),
        page_size=size,
        page_token=view.asked("after"),
    )


async def tasks(view: View) -> dict[str, Any]:
    """One page of tasks that match the filters."""
    answer = await view.fleet.tasks(request_of(view))
    now = view.pulse.now()
    rows = [_row(task, now) for task in answer.tasks]
    return {
        "rows": rows,
        "filters": [(name, text) for name, (text, _) in FILTERS.items()],
        "state": view.asked("state"),
        "kind": view.asked("kind"),
        "id": view.asked("id"),
        "next": view.link(after=answer.next_page_token) if answer.next_page_token else "",
        "first": view.link(after="") if view.asked("after") else "",
        "export": {
            kind: "export" + view.link(what="tasks", format=kind, after="")[len(view.page) :]
            for kind in ("csv", "json")
        },
        "unfinished": any(row["unfinished"] for row in rows),
    }


def _row(task: task_pb2.Task, now: float) -> dict[str, Any]:
    state = figures.task_state(task.state)
    outcome = task.outcome
    return {
        "id": task.spec.task_id,
        "kind": task.spec.kind,
        "priority": figures.priority(task.spec.priority),
        "state": state,
        "tone": figures.tone(state),
        "unfinished": task.state in _UNFINISHED,
        "attempts": task.attempts,
        "actor": outcome.actor_id or task.actor_id or figures.NONE,
        "submitted": figures.ago(task.submit_time, now),
        "ran": figures.span(outcome.ran) if task.HasField("outcome") else figures.NONE,
        "failure": outcome.failure.reason if task.HasField("outcome") and outcome.HasField("failure") else "",
    }


async def task(view: View) -> dict[str, Any]:
    """One task: its state and why, its attempts, its parameters and result, and log lines that name it."""
    task_id = view.asked("id")
    if not task_id:
        raise InvalidInput("id is empty; it must name a task")
    found, why = await asyncio.gather(view.fleet.task(task_id), view.fleet.explanation(task_id))
    trace = await view.fleet.trace(
        pb.GetTraceRequest(seconds=TASK_TRACE_SECONDS, task_id_prefix=task_id, max_attempts=1_000)
    )
    attempts = sorted((each for each in attempts_in(trace) if each.task_id == task_id), key=lambda each: each.number)
    spec, outcome = found.spec, found.outcome
    failure = outcome.failure if found.HasField("outcome") and outcome.HasField("failure") else None
    return {
        "task": _row(found, view.pulse.now()),
        "why": why,
        "states": _states(found, attempts),
        "task_facts": [
            ("submitter", spec.submitter or figures.NONE),
            ("submitted", figures.clock(figures.moment(found.submit_time))),
            ("most attempts", str(spec.max_attempts or "the scheduler's default")),
            ("placement", _placement(spec.placement)),
            ("waited", figures.span(outcome.queued) if found.HasField("outcome") else figures.NONE),
        ],
        "dependencies": list(spec.dependencies),
        "attempts": [
            {
                "number": each.number,
                "state": each.state.lower(),
                "tone": figures.tone(each.state.lower()),
                "actor": each.actor_id,
                "start": figures.clock(each.start),
                "ran": figures.seconds(each.seconds),
            }
            for each in attempts
        ],
        "failure": failure.reason if failure is not None else "",
        "message": failure.message.partition("\n")[0] if failure is not None else "",
        "traceback": failure.message.partition("\n")[2] if failure is not None else "",
        "payload": _payload(spec.payload) if spec.HasField("payload") else "",
        "result": _payload(outcome.result) if found.HasField("outcome") and outcome.HasField("result") else "",
        "logs": await asyncio.to_thread(_logs, view, found) if view.config.logs is not None else None,
    }


def _states(found: task_pb2.Task, attempts: list[Any]) -> list[tuple[str, str]]:
    """Its past states that the scheduler remembers, with their times."""
    steps = [("submitted", figures.clock(figures.moment(found.submit_time)))]
    for each in attempts:
        steps.append((f"attempt {each.number} started on {each.actor_id}", figures.clock(each.start)))
        if each.repeated:
            why = "was lost with its actor" if each.state == LOST else "is repeated"
            steps.append((f"attempt {each.number} {why}", figures.clock(each.end)))
    if found.HasField("outcome"):
        ended = figures.clock(attempts[-1].end) if attempts else figures.NONE
        steps.append((figures.task_state(found.state), ended))
    else:
        steps.append((f"{figures.task_state(found.state)} now", ""))
    return steps


def _placement(placement: task_pb2.Placement) -> str:
    wanted = [f"node {placement.node_id}"] if placement.node_id else []
    wanted += [f"{name}={value}" for name, value in sorted(placement.labels.items())]
    return ", ".join(wanted) or "any actor that has the kind"


def _payload(payload: task_pb2.Payload) -> str:
    text = json.dumps(MessageToDict(payload.parameters), indent=2, ensure_ascii=False)
    tensors = [f"{each.name}: {each.dtype} {list(each.shape)}" for each in payload.tensors]
    shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}\n… cut at {LONGEST_SHOWN:,} characters"
    return "\n".join([shown, *tensors])


def _logs(view: View, found: task_pb2.Task) -> list[Any]:
    assert view.config.logs is not None
    return LogFolder(view.config.logs).lines(contains=found.spec.task_id, most=LOG_LINES)
