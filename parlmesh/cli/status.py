"""`parlmesh status` and `parlmesh top`: a running fleet, once or live."""

from typing import TYPE_CHECKING, Annotated

import typer

from parlmesh.cli.connection import (
    CALL_SECONDS,
    LEARNER_DEFAULT,
    SCHEDULER_DEFAULT,
    AsJson,
    LearnerAddress,
    RunId,
    SchedulerAddress,
    learner_at,
    run,
    scheduler_at,
    security_of,
)
from parlmesh.cli.tables import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parlmesh.security import SecurityConfig
    from parlmesh.v1.scheduler_service_pb2 import GetStatisticsResponse, ListActorsResponse
    from parlmesh.v1.training_service_pb2 import ListTrainingsResponse, Training


def status(
    context: typer.Context,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    learner: LearnerAddress = LEARNER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the runs, the queue and the actors of a running fleet."""
    from parlmesh.cli.actors import show_actors

    security = security_of(context)
    trainings = run(_trainings(learner, security))
    statistics, listed = run(_queue(scheduler, security))
    if as_json:
        print_json([*trainings.trainings, statistics, *listed.actors])
        return
    show_trainings(trainings.trainings)
    print_table(
        [">queued", ">waiting", ">running", ">completed", ">failed", ">cancelled", ">tasks/s", ">latency", ">busy"],
        [_queue_row(statistics)],
        nothing="",
    )
    show_actors(listed.actors)


def show_trainings(trainings: "Sequence[Training]") -> None:
    """The runs as a table."""
    print_table(
        ["run", "state", ">steps", ">budget", ">steps/s", ">return", "evaluation", ">version", ">lag"],
        [_training_row(training) for training in trainings],
        nothing="no run",
    )


def top(
    context: typer.Context,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    learner: LearnerAddress = LEARNER_DEFAULT,
    run_id: RunId = "",
    plain: Annotated[bool, typer.Option("--plain", "--no-live", help="lines instead of the live table")] = False,
) -> None:
    """Follow a running fleet in a live table until the run ends or Ctrl-C."""
    run(_follow(scheduler, learner, security_of(context), run_id, plain=plain))


async def _follow(scheduler: str, learner: str, security: "SecurityConfig", run_id: str, *, plain: bool) -> None:
    from parlmesh.cli.display import shown
    from parlmesh.cli.feed import follow_training, poll_scheduler
    from parlmesh.cli.fleet import first_of
    from parlmesh.cli.live import console
    from parlmesh.cli.view import FleetView
    from parlmesh.v1.training_service_pb2 import GetTrainingRequest

    # One short call first, so that a wrong address or run is said at once instead of waited for.
    async with learner_at(learner, security) as stub:
        answer = await stub.GetTraining(GetTrainingRequest(run_id=run_id), timeout=CALL_SECONDS)
    view = FleetView(answer.training.run_id)
    view.learn(answer.training)
    async with shown(view, console(), plain=plain):
        await first_of(follow_training(view, learner, security, run_id), poll_scheduler(view, scheduler, security))


async def _trainings(address: str, security: "SecurityConfig") -> "ListTrainingsResponse":
    from parlmesh.v1.training_service_pb2 import ListTrainingsRequest

    async with learner_at(address, security) as stub:
        return await stub.ListTrainings(ListTrainingsRequest(), timeout=CALL_SECONDS)


async def _queue(address: str, security: "SecurityConfig") -> "tuple[GetStatisticsResponse, ListActorsResponse]":
    from parlmesh.v1.scheduler_service_pb2 import GetStatisticsRequest, ListActorsRequest

    async with scheduler_at(address, security) as stub:
        statistics = await stub.GetStatistics(GetStatisticsRequest(), timeout=CALL_SECONDS)
        return statistics, await stub.ListActors(ListActorsRequest(), timeout=CALL_SECONDS)


def _training_row(training: "Training") -> list[str]:
    from parlmesh.cli.view import goal_text, number, state_name

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
