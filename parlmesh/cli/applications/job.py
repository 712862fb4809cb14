"""`parlmesh job`: shows where the time of a job went, from the scheduler's trace."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parlmesh.cli.connection import SCHEDULER_DEFAULT, SchedulerAddress, run, security_of

if TYPE_CHECKING:
    from parlmesh.orchestration.report.trace import Attempt
    from parlmesh.security import SecurityConfig

app = typer.Typer(
    no_args_is_help=True,
    help="Show where the time of a job went. A job is the tasks JOB/…, or one task with its dependencies.",
)

Seconds = Annotated[int, typer.Option(min=1, max=3600, help="how far back to look")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]


@app.command()
def report(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="prefix of its task ids, or one task")],
    perfetto: Annotated[Path | None, typer.Option(metavar="FILE", help="write the job as a Perfetto trace")] = None,
    seconds: Seconds = 3600,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show a job's critical path, the use of its slots, and the gain of one more slot."""
    import json
    from dataclasses import asdict

    from parlmesh.cli.screen.output_tables import say
    from parlmesh.orchestration.report.perfetto import perfetto_of
    from parlmesh.orchestration.report.report import report_of
    from parlmesh.orchestration.report.report_text import lines_of
    from parlmesh.orchestration.report.trace import job_in

    attempts, slots = run(_trace(scheduler, security_of(context), seconds))
    found = report_of(attempts, job, slots)
    if perfetto is not None:
        perfetto.write_text(perfetto_of(job_in(attempts, job), found), encoding="utf-8")
    say(json.dumps(asdict(found)) if as_json else "\n".join(lines_of(found)))


@app.command()
def compare(
    context: typer.Context,
    first: Annotated[str, typer.Argument(metavar="A")],
    second: Annotated[str, typer.Argument(metavar="B")],
    seconds: Seconds = 3600,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Explain the difference between two jobs."""
    from dataclasses import asdict

    from parlmesh.cli.screen.output_tables import print_object, say
    from parlmesh.orchestration.report.report import report_of
    from parlmesh.orchestration.report.report_text import comparison_of

    attempts, slots = run(_trace(scheduler, security_of(context), seconds))
    one, other = report_of(attempts, first, slots), report_of(attempts, second, slots)
    said = comparison_of(one, other)
    if as_json:
        print_object(first=asdict(one), second=asdict(other), differences=list(said))
    else:
        say("\n".join(said))


async def _trace(address: str, security: "SecurityConfig", seconds: int) -> "tuple[list[Attempt], int]":
    """The attempts the scheduler remembers, and the number of slots of READY actors."""
    from parlmesh.client import PARLController
    from parlmesh.client.config import ClientConfig
    from parlmesh.client.fleet_info import ActorState
    from parlmesh.orchestration.report.trace import attempts_in

    config = ClientConfig(connect_seconds=5.0)
    async with await PARLController.connect(address, security=security, config=config) as controller:
        actors = await controller.list_actors()
        slots = sum(actor.slots for actor in actors if actor.state == ActorState.READY)
        return attempts_in(await controller.get_trace(seconds=seconds)), slots
