"""`parlmesh tasks`: submits, lists, watches, explains and cancels tasks of a running fleet."""

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parlmesh.cli.connection import (
    CALL_SECONDS,
    SCHEDULER_DEFAULT,
    AsJson,
    SchedulerAddress,
    run,
    scheduler_at,
    security_of,
)
from parlmesh.cli.key_value_options import pairs
from parlmesh.cli.screen.ages import age_of, seconds_of
from parlmesh.cli.screen.output_tables import enum_word, print_json, print_table, say
from parlmesh.errors import DeadlineExceeded, InvalidInput, Unavailable
from parlmesh.harmless_text import indented

if TYPE_CHECKING:
    from parlmesh.security import SecurityConfig
    from parlmesh.v1.scheduler_service_pb2 import CancelTasksResponse, ExplainTaskResponse
    from parlmesh.v1.task_pb2 import Outcome, Task, TaskSpec

app = typer.Typer(no_args_is_help=True, help="Submit, list, watch, explain and cancel tasks.")

STATES = ("waiting", "queued", "running", "succeeded", "failed", "cancelled", "quarantined")
PRIORITIES = ("background", "low", "normal", "high", "critical")
LARGEST_BATCH = 10_000
_AGAIN_SECONDS = 0.2

TaskIds = Annotated[list[str], typer.Argument(metavar="TASK_ID…", help="ids as `tasks submit` printed them")]
Patience = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="stop waiting after this")]


@app.command()
def submit(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help="the task's kind, e.g. echo, sleep, noop")],
    parameter: Annotated[
        list[str] | None, typer.Option("--param", metavar="KEY=VALUE", help="one parameter, value as YAML; repeatable")
    ] = None,
    parameters: Annotated[str, typer.Option("--parameters", metavar="JSON", help="all parameters at once")] = "",
    count: Annotated[int, typer.Option(min=1, max=LARGEST_BATCH, help="submit this many identical tasks")] = 1,
    priority: Annotated[str, typer.Option(help=", ".join(PRIORITIES))] = "normal",
    after: Annotated[
        list[str] | None,
        typer.Option("--after", metavar="TASK_ID", help="run once this task has succeeded; repeatable"),
    ] = None,
    task_id: Annotated[str, typer.Option("--id", help="your own id, so that a retry is safe; with one task only")] = "",
    node: Annotated[str, typer.Option(help="only on this node")] = "",
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="only on actors with this label; repeatable"),
    ] = None,
    queue_timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="longest wait for a slot; 0 = no limit")
    ] = 0,
    run_timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="longest run; 0 = the default")] = 0,
    attempts: Annotated[int, typer.Option(min=0, help="most attempts; 0 = the scheduler's default")] = 0,
    wait: Annotated[bool, typer.Option("--wait", help="wait until all have ended")] = False,
    timeout: Patience = 3_600.0,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Submit tasks and print their ids."""
    from parlmesh.v1.task_pb2 import TaskSpec

    if task_id and count > 1:
        raise InvalidInput(f"--id names one task, --count is {count}; leave one of them out")
    spec = TaskSpec(
        task_id=task_id,
        kind=kind,
        priority=_choice("--priority", priority, PRIORITIES) + 1,  # type: ignore[arg-type]  # the enum begins at 1
        dependencies=after or (),
        max_attempts=attempts,
    )
    spec.payload.parameters.update(_parameters(parameters, parameter or ()))
    spec.placement.node_id = node
    spec.placement.labels.update(pairs("--label", label or ()))
    for field, seconds in ((spec.queue_timeout, queue_timeout), (spec.run_timeout, run_timeout)):
        if seconds:
            field.FromNanoseconds(int(seconds * 1e9))
    run(_submit([spec] * count, scheduler, security_of(context), wait=wait, patience_seconds=timeout, as_json=as_json))


async def _submit(
    specs: "Sequence[TaskSpec]",
    address: str,
    security: "SecurityConfig",
    *,
    wait: bool,
    patience_seconds: float,
    as_json: bool,
) -> None:
    from parlmesh.v1.scheduler_service_pb2 import SubmitTasksRequest

    async with scheduler_at(address, security) as stub:
        answer = await stub.SubmitTasks(SubmitTasksRequest(tasks=specs), timeout=CALL_SECONDS)
    if not wait:
        if as_json:
            print_json([answer])
        else:
            say("\n".join(answer.task_ids))
        return
    task_ids = list(answer.task_ids)
    await _watch(task_ids, address, security, patience_seconds=patience_seconds, as_json=as_json, accepted=True)


@app.command("list")
def list_tasks(
    context: typer.Context,
    state: Annotated[
        list[str] | None, typer.Option("--state", help=f"only these: {', '.join(STATES)}; repeatable")
    ] = None,
    kind: Annotated[str, typer.Option(help="only this kind")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="at most this many, newest first")] = 50,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List tasks, newest first."""
    states = [_choice("--state", word, STATES) + 1 for word in state or ()]
    tasks = run(_list(states, kind, limit, scheduler, security_of(context)))
    if as_json:
        print_json(tasks)
        return
    now = time.time()
    print_table(
        ["task", "kind", "priority?", "state", ">attempts?", "actor", "submitted?"],
        [_task_row(task, now) for task in tasks],
        nothing="no such tasks",
    )


async def _list(states: Sequence[int], kind: str, limit: int, address: str, security: "SecurityConfig") -> "list[Task]":
    from parlmesh.v1.scheduler_service_pb2 import ListTasksRequest

    tasks: list[Task] = []
    token = ""
    async with scheduler_at(address, security) as stub:
        while len(tasks) < limit:
            request = ListTasksRequest(kind=kind, page_size=min(limit - len(tasks), 1_000), page_token=token)
            request.states.extend(states)  # type: ignore[arg-type]  # numbers of the enum
            page = await stub.ListTasks(request, timeout=CALL_SECONDS)
            tasks.extend(page.tasks)
            token = page.next_page_token
            if not token:
                break
    return tasks[:limit]


@app.command()
def watch(
    context: typer.Context,
    task_ids: TaskIds,
    timeout: Patience = 3_600.0,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Wait for tasks and print each outcome as it comes; exit code 1 when one did not succeed."""
    run(_watch(task_ids, scheduler, security_of(context), patience_seconds=timeout, as_json=as_json))


async def _watch(
    task_ids: list[str],
    address: str,
    security: "SecurityConfig",
    *,
    patience_seconds: float,
    as_json: bool,
    accepted: bool = False,
) -> None:
    """`accepted`: a scheduler has answered before, so one that does not answer now is down, not a wrong address."""
    import asyncio

    from parlmesh.v1.scheduler_service_pb2 import WatchTasksRequest
    from parlmesh.v1.task_pb2 import TASK_STATE_SUCCEEDED

    failed, told = 0, False
    waiting = set(task_ids)
    until = time.monotonic() + patience_seconds
    try:
        while waiting:
            request = WatchTasksRequest(task_ids=[each for each in task_ids if each in waiting])
            try:
                async with scheduler_at(address, security) as stub:
                    async for answer in stub.WatchTasks(request, timeout=max(0.1, until - time.monotonic())):
                        accepted = True
                        failed += sum(1 for outcome in answer.outcomes if outcome.state != TASK_STATE_SUCCEEDED)
                        waiting -= {outcome.task_id for outcome in answer.outcomes}
                        if as_json:
                            print_json(answer.outcomes)
                        else:
                            for outcome in answer.outcomes:
                                say(_outcome_line(outcome))
            except Unavailable:
                # Accepted tasks survive: the scheduler comes back, or a standby takes over.
                if not accepted:
                    raise
                if not told:
                    say(f"no scheduler answers at {address}; accepted tasks are kept, still waiting", to_stderr=True)
                told = True
            if waiting:
                if time.monotonic() > until:
                    raise DeadlineExceeded("")
                await asyncio.sleep(_AGAIN_SECONDS)
    except DeadlineExceeded:
        raise DeadlineExceeded(
            f"{len(waiting)} of {len(set(task_ids))} tasks had not ended within {patience_seconds:g} s;"
            f" `parlmesh tasks why {min(waiting)}` says where the first one is"
        ) from None
    if failed:
        raise typer.Exit(1)


@app.command()
def why(
    context: typer.Context,
    task_id: Annotated[str, typer.Argument(metavar="TASK_ID")],
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Say in one sentence why a task waits, runs or ended."""

    async def explain() -> "ExplainTaskResponse":
        from parlmesh.v1.scheduler_service_pb2 import ExplainTaskRequest

        async with scheduler_at(scheduler, security_of(context)) as stub:
            return await stub.ExplainTask(ExplainTaskRequest(task_id=task_id), timeout=CALL_SECONDS)

    answer = run(explain())
    if as_json:
        print_json([answer])
    else:
        say(indented(answer.explanation))


@app.command()
def cancel(
    context: typer.Context, task_ids: TaskIds, scheduler: SchedulerAddress = SCHEDULER_DEFAULT, as_json: AsJson = False
) -> None:
    """Cancel unfinished tasks and print the ids of the cancelled ones."""

    async def stop() -> "CancelTasksResponse":
        from parlmesh.v1.scheduler_service_pb2 import CancelTasksRequest

        async with scheduler_at(scheduler, security_of(context)) as stub:
            return await stub.CancelTasks(CancelTasksRequest(task_ids=task_ids), timeout=CALL_SECONDS)

    answer = run(stop())
    if as_json:
        print_json([answer])
    else:
        say("\n".join(answer.cancelled_task_ids) or "nothing to cancel: all of them had ended")


def _task_row(task: "Task", now: float) -> list[str]:
    from parlmesh.v1.task_pb2 import Priority, TaskState

    return [
        task.spec.task_id,
        task.spec.kind,
        enum_word(Priority.Name(task.spec.priority), "PRIORITY_"),
        enum_word(TaskState.Name(task.state), "TASK_STATE_"),
        str(task.attempts),
        task.actor_id or task.outcome.actor_id or "–",
        age_of(task.submit_time, now),
    ]


def _outcome_line(outcome: "Outcome") -> str:
    from google.protobuf.json_format import MessageToDict

    from parlmesh.v1.task_pb2 import TaskState

    state = enum_word(TaskState.Name(outcome.state), "TASK_STATE_")
    end = (
        json.dumps(MessageToDict(outcome.result.parameters))
        if outcome.HasField("result")
        else f"{outcome.failure.reason}: {outcome.failure.message}"
    )
    times = f"queued {seconds_of(outcome.queued)}, ran {seconds_of(outcome.ran)}"
    return indented(f"{outcome.task_id}  {state}  {outcome.actor_id or '–'}  {times}  {end}")


def _choice(option: str, word: str, allowed: Sequence[str]) -> int:
    if word.lower() not in allowed:
        raise InvalidInput(f"{option} is {word}; allowed are {', '.join(allowed)}")
    return allowed.index(word.lower())


def _parameters(document: str, texts: Sequence[str]) -> dict[str, Any]:
    import yaml

    try:
        parameters = json.loads(document) if document else {}
    except ValueError as error:
        raise InvalidInput(f"--parameters is not valid JSON: {error}") from None
    if not isinstance(parameters, dict):
        raise InvalidInput(f"--parameters must be a JSON object, got {type(parameters).__name__}")
    for key, value in pairs("--param", texts).items():
        try:
            parameters[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InvalidInput(f'--param {key}: "{value}" is not valid YAML; put quotes around text') from None
    return parameters
