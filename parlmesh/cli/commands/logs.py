"""`parlmesh logs`: shows the log lines of a process, a run or a task, even after the process has died."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parlmesh.cli.connection import (
    CALL_SECONDS,
    SCHEDULER_DEFAULT,
    SchedulerAddress,
    run,
    scheduler_at,
    security_of,
)
from parlmesh.errors import DeadlineExceeded, FleetError, NotFound, Unavailable

if TYPE_CHECKING:
    from parlmesh.security import SecurityConfig
    from parlmesh.telemetry.log_files import LogFile, LogFolder

FOLLOW_SECONDS = 0.5


def logs(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="ACTOR|RUN|TASK", help="a process such as actor-0, a run, or a task")],
    runs_dir: Annotated[Path, typer.Option(metavar="DIR", help="where runs are kept")] = Path("runs"),
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=100_000, help="number of last lines")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="keep printing new lines until Ctrl-C")] = False,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, one object per line")] = False,
) -> None:
    """Show the logs of an actor, a run or a task, as `parlmesh up` keeps them on this machine.

    A process that was restarted has one log. For a task, the command shows the lines of every process that name it, or
    the whole log of its actor if none does. Processes elsewhere log to their own journal or container.
    """
    from parlmesh.telemetry.log_files import LogFolder

    if not runs_dir.is_dir():
        raise NotFound(f"{runs_dir} is not a folder; set --runs-dir to the folder of the runs")
    folder = LogFolder(runs_dir)
    files, contains = folder.of(name), ""
    if not files:
        files, contains = folder.files(), name
        if not any(folder.lines(contains=name, most=1, files=files)):
            files, contains = _of_its_actor(folder, name, scheduler, security_of(context)), ""
    for line in folder.lines(contains=contains, most=lines, files=files):
        _print(line, as_json=as_json)
    if follow:
        _follow(files, contains, as_json=as_json)


def _of_its_actor(folder: "LogFolder", task_id: str, address: str, security: "SecurityConfig") -> "list[LogFile]":
    """The log of the actor that ran the task; raises NotFound when nothing is known under that name."""
    from parlmesh.v1.scheduler_service_pb2 import GetTaskRequest

    async def actor() -> str:
        async with scheduler_at(address, security) as stub:
            task = (await stub.GetTask(GetTaskRequest(task_id=task_id), timeout=CALL_SECONDS)).task
        return task.outcome.actor_id or task.actor_id

    why = "no log has it in a line"
    try:
        found = run(actor())
        files = folder.of(found) if found else []
        if files:
            return files
        why = f"its actor {found} has no log here" if found else "no actor has had it"
    except (Unavailable, DeadlineExceeded):
        why += ", and no scheduler answers that could name its actor"
    except FleetError as error:
        why += f": {error.message}"
    known = ", ".join(sorted({file.process for file in folder.files()})[:20])
    raise NotFound(f"no process, run or task {task_id} has a log: {why}; there are {known or 'no logs'}")


def _print(line: object, *, as_json: bool) -> None:
    import json
    from dataclasses import asdict

    typer.echo(json.dumps(asdict(line)) if as_json else str(line))  # type: ignore[call-overload]  # a LogLine


def _follow(files: "list[LogFile]", contains: str, *, as_json: bool) -> None:
    import time

    from parlmesh.telemetry.log_files import follow

    offsets = {file: file.path.stat().st_size for file in files}
    while True:
        time.sleep(FOLLOW_SECONDS)
        for file in files:
            for line, offset in follow(file, offsets[file]):
                offsets[file] = offset
                if contains in line.text:
                    _print(line, as_json=as_json)
