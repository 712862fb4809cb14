"""`parlmesh status`: shows a running fleet once, and says which service does not answer."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import typer

from parlmesh.cli.connection import (
    CALL_SECONDS,
    LEARNER_DEFAULT,
    SCHEDULER_DEFAULT,
    AsJson,
    LearnerAddress,
    SchedulerAddress,
    all_pages,
    federations_at,
    learner_at,
    run,
    scheduler_at,
    security_of,
)
from parlmesh.cli.screen.output_tables import print_json, print_table, say
from parlmesh.errors import DeadlineExceeded, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parlmesh.security import SecurityConfig
    from parlmesh.v1.federation_service_pb2 import Federation
    from parlmesh.v1.scheduler_service_pb2 import Actor, GetStatisticsResponse
    from parlmesh.v1.training_service_pb2 import Training

    Queue = tuple[GetStatisticsResponse, Sequence[Actor]]

AWAY = (Unavailable, DeadlineExceeded)
"""Errors of a service that does not answer; the command still shows the other one."""


@dataclass
class Learning:
    """The state of a learner: its runs, or its federation."""

    trainings: "Sequence[Training]" = ()
    federation: "Federation | None" = None
    runs: bool = True
    """Whether it serves runs; a learner with mode=federation does not."""


def status(
    context: typer.Context,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    learner: LearnerAddress = LEARNER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the runs or the federation, the queue and the actors of a running fleet.

    Exit code 1 when nothing answers, or when a service whose address was given does not.
    """
    learning, queue = run(look(scheduler, learner, security_of(context)))
    show(learning, queue, as_json=as_json)
    missed = (learning is None and _was_given(context, "learner")) or (
        queue is None and _was_given(context, "scheduler")
    )
    raise typer.Exit(1 if missed else 0)


def _was_given(context: typer.Context, name: str) -> bool:
    """Whether the address was given by an option or a variable, rather than being the default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


async def look(scheduler: str, learner: str, security: "SecurityConfig") -> "tuple[Learning | None, Queue | None]":
    """Asks both services; prints a line to stderr for one that does not answer, and raises when neither does."""
    absent: list[Unavailable | DeadlineExceeded] = []
    learning: Learning | None = None
    queue: Queue | None = None
    try:
        learning = await _learning(learner, security)
    except AWAY as error:
        absent.append(error)
    try:
        queue = await _queue(scheduler, security)
    except AWAY as error:
        absent.append(error)
    if learning is None and queue is None:
        raise _nobody(absent, scheduler, learner)
    for away in absent:
        say(f"parlmesh: {away.message}", to_stderr=True)
    return learning, queue


def show(learning: Learning | None, queue: "Queue | None", *, as_json: bool) -> None:
    if learning is not None:
        _show_learning(learning, as_json=as_json)
    if queue is not None:
        _show_queue(*queue, as_json=as_json)


def _nobody(absent: "Sequence[Unavailable | DeadlineExceeded]", scheduler: str, learner: str) -> Exception:
    """The error when neither answers; a bad certificate or a standby scheduler keeps its own message."""
    told = next((error for error in absent if error.reason in ("SECURITY", "NOT_LEADER")), None)
    return told or Unavailable(
        f"neither a scheduler at {scheduler} nor a learner at {learner} answers; start a fleet with"
        " `parlmesh up --keep` or name other addresses with --scheduler and --learner HOST:PORT"
    )


def _show_learning(learning: Learning, *, as_json: bool) -> None:
    if as_json:
        print_json(learning.trainings, type_name="training")
        print_json([learning.federation] if learning.federation is not None else [], type_name="federation")
        return
    if learning.runs:
        show_trainings(learning.trainings)
    if learning.federation is not None:
        from parlmesh.cli.screen.federation_view import sentence

        say(f"federation {sentence(learning.federation)}")
    elif not learning.runs:
        say("no federation yet")


def _show_queue(statistics: "GetStatisticsResponse", actors: "Sequence[Actor]", *, as_json: bool) -> None:
    from parlmesh.cli.commands.actors import show_actors

    if as_json:
        print_json([statistics], type_name="statistics")
        print_json(actors, type_name="actor")
        return
    print_table(
        [">queued", ">waiting", ">running", ">completed", ">failed", ">cancelled?", ">tasks/s", ">latency?", ">busy"],
        [_queue_row(statistics)],
        nothing="",
    )
    show_actors(actors)


async def _learning(address: str, security: "SecurityConfig") -> Learning:
    from parlmesh.v1.training_service_pb2 import ListTrainingsRequest

    found = Learning()
    try:
        async with learner_at(address, security) as stub:
            found.trainings = await all_pages(stub.ListTrainings, ListTrainingsRequest(), "trainings")
    except Unavailable as error:
        if error.reason != "NOT_SERVED":
            raise
        found.runs = False
    if not found.runs:
        found.federation = await newest_federation(address, security)
    return found


async def newest_federation(address: str, security: "SecurityConfig") -> "Federation | None":
    """The federation that a learner with mode=federation coordinates or last coordinated; None before the first."""
    from parlmesh.v1.federation_service_pb2 import GetFederationRequest

    try:
        async with federations_at(address, security) as federations:
            return (await federations.GetFederation(GetFederationRequest(), timeout=CALL_SECONDS)).federation
    except NotFound:
        return None


async def _queue(address: str, security: "SecurityConfig") -> "Queue":
    from parlmesh.rpc import pages
    from parlmesh.v1.scheduler_service_pb2 import GetStatisticsRequest, ListActorsRequest

    async with scheduler_at(address, security) as stub:
        statistics = await stub.GetStatistics(GetStatisticsRequest(), timeout=CALL_SECONDS)
        listing = pages(partial(stub.ListActors, timeout=CALL_SECONDS), ListActorsRequest())
        return statistics, [actor async for page in listing for actor in page.actors]


def show_trainings(trainings: "Sequence[Training]") -> None:
    """Prints the runs as a table."""
    print_table(
        ["run", "state", ">steps", ">budget?", ">steps/s?", ">return", "evaluation", ">version?", ">lag?"],
        [_training_row(training) for training in trainings],
        nothing="no run",
    )
    _say_reasons(trainings)


def _say_reasons(trainings: "Sequence[Training]") -> None:
    """Prints below the table why a run makes no progress, and what fails in it."""
    from parlmesh.cli.screen.fleet_view import failures_text

    for training in trainings:
        for text in (training.reason, training.obstacle, failures_text(training), *training.notes):
            if text:
                typer.echo(f"{training.run_id}: {text}")


def _training_row(training: "Training") -> list[str]:
    from parlmesh.cli.screen.fleet_view import goal_text, number, state_name

    progress = training.progress
    return [
        training.run_id,
        state_name(training.state),
        f"{progress.steps:,}",
        f"{progress.step_budget:,}",
        f"{progress.steps_per_second:,.0f}",
        number(progress.episode_return if progress.HasField("episode_return") else None),
        goal_text(training),
        str(progress.policy_version),
        f"{progress.policy_lag:.1f}",
    ]


def _queue_row(statistics: "GetStatisticsResponse") -> list[str]:
    return [
        f"{statistics.queued_tasks:,}",
        f"{statistics.waiting_tasks:,}",
        f"{statistics.running_tasks:,}",
        f"{statistics.completed_tasks:,}",
        f"{statistics.failed_tasks:,}",
        f"{statistics.cancelled_tasks:,}",
        f"{statistics.throughput_tps:,.1f}",
        f"{statistics.avg_task_latency_ms:,.1f} ms",
        f"{statistics.worker_utilization:.0%}",
    ]
