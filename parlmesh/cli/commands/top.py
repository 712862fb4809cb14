"""`parlmesh top`: shows a running fleet in a live table, with or without a learner."""

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
from parlmesh.errors import FleetError, InvalidInput, NotFound, Unavailable

if TYPE_CHECKING:
    from parlmesh.cli.screen.fleet_view import FleetView
    from parlmesh.security import SecurityConfig
    from parlmesh.v1.training_service_pb2 import Training

REPORT_SECONDS = 1.0
_FEDERATION = "federation"


def top(
    context: typer.Context,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    learner: LearnerAddress = LEARNER_DEFAULT,
    run_id: RunId = "",
    tab: Annotated[str, typer.Option(help="tab to show first: run, fleet, tasks, runs or rounds")] = "run",
    plain: Annotated[bool, typer.Option("--plain", "--no-live", help="lines instead of the live table")] = False,
    as_json: AsJson = False,
) -> None:
    """Follow a running fleet in a live table until the run ends or Ctrl-C. Of several runs, it follows the newest
    running one.

    If the run has already ended, it shows the fleet until Ctrl-C.

    The keys 1 to 5 and Tab show the run, the actors, the newest tasks, all runs, and the rounds of a federation.
    """
    from parlmesh.cli.screen.top_tabs import NAMES

    if tab not in NAMES:
        raise InvalidInput(f"--tab is {tab}; allowed are {', '.join(NAMES)}")
    if as_json:
        run(_report(scheduler, learner, security_of(context), run_id))
        return
    run(_follow(scheduler, learner, security_of(context), run_id, tab=tab, plain=plain))


async def _report(scheduler: str, learner: str, security: "SecurityConfig", run_id: str) -> None:
    """Prints the output of `status --json` every second until the run, or every run, has ended."""
    import asyncio

    from parlmesh.cli.commands.status import look, show
    from parlmesh.cli.screen.fleet_view import FINAL_STATES

    while True:
        learning, queue = await look(scheduler, learner, security)
        show(learning, queue, as_json=True)
        runs = [] if learning is None else [each for each in learning.trainings if run_id in ("", each.run_id)]
        if run_id and learning is not None and not runs:
            raise NotFound(f"there is no run {run_id} at {learner}", reason="RUN_NOT_FOUND")
        if runs and all(each.state in FINAL_STATES for each in runs):
            return
        await asyncio.sleep(REPORT_SECONDS)


async def _follow(
    scheduler: str, learner: str, security: "SecurityConfig", run_id: str, *, tab: str, plain: bool
) -> None:
    from parlmesh.cli.screen.fleet_feed import follow_training, poll_scheduler
    from parlmesh.cli.screen.fleet_view import FINAL_STATES, FleetView
    from parlmesh.cli.screen.key_presses import pressed
    from parlmesh.cli.screen.live_display import shown
    from parlmesh.cli.screen.live_table import console
    from parlmesh.cli.screen.top_tabs import Tabs, keep_current
    from parlmesh.rpc.task_group import first_of

    view = FleetView(run_id or "no run")
    # Short calls first, so that a wrong address or run is reported immediately.
    followed = await _chosen(view, learner, scheduler, security, run_id)
    tabs = Tabs("rounds" if tab == "run" and view.phase == _FEDERATION else tab)
    async with shown(view, console(), plain=plain, tabs=tabs):
        with pressed(tabs.press):
            polling = poll_scheduler(view, scheduler, security)
            filling = keep_current(tabs, scheduler, learner, security)
            if followed is None or (not run_id and not plain and followed.state in FINAL_STATES):
                # There is no run to wait for: show the fleet until Ctrl-C.
                await first_of(polling, filling)
            else:
                await first_of(follow_training(view, learner, security, followed.run_id), polling, filling)


async def _chosen(
    view: "FleetView", learner: str, scheduler: str, security: "SecurityConfig", run_id: str
) -> "Training | None":
    """The run to follow; None if the learner has federations, or if only the scheduler answers."""
    from parlmesh.v1.scheduler_service_pb2 import GetStatisticsRequest

    try:
        training = await _training(view, learner, security, run_id)
    except Unavailable as error:
        if run_id or error.reason == "SECURITY":
            raise
        if error.reason == "NOT_SERVED" and await _federates(view, learner, security):
            return None
        try:
            async with scheduler_at(scheduler, security) as stub:
                await stub.GetStatistics(GetStatisticsRequest(), timeout=CALL_SECONDS)
        except Unavailable:
            raise error from None
        view.phase = "no learner"
        view.note(error.message)
        return None
    view.run_id = training.run_id
    view.learn(training)
    return training


async def _federates(view: "FleetView", learner: str, security: "SecurityConfig") -> bool:
    """Whether this learner has federations instead of runs; if so, notes the state of the newest one in the view."""
    from parlmesh.cli.commands.status import newest_federation
    from parlmesh.cli.screen.federation_view import sentence

    try:
        federation = await newest_federation(learner, security)
    except Unavailable:
        return False
    view.phase = _FEDERATION
    view.note("no federation yet" if federation is None else f"federation {sentence(federation)}")
    return True


async def _training(view: "FleetView", learner: str, security: "SecurityConfig", run_id: str) -> "Training":
    from parlmesh.v1.training_service_pb2 import TRAINING_STATE_RUNNING, GetTrainingRequest, ListTrainingsRequest

    try:
        async with learner_at(learner, security) as stub:
            return (await stub.GetTraining(GetTrainingRequest(run_id=run_id), timeout=CALL_SECONDS)).training
    except FleetError as error:
        if error.reason != "RUN_ID_NEEDED":
            raise
    async with learner_at(learner, security) as stub:
        trainings = (await stub.ListTrainings(ListTrainingsRequest(), timeout=CALL_SECONDS)).trainings
    # The newest comes first.
    chosen = next((each for each in trainings if each.state == TRAINING_STATE_RUNNING), trainings[0])
    others = ", ".join(each.run_id for each in trainings if each.run_id != chosen.run_id)
    view.note(f"one of {len(trainings)} runs; --run ID shows another: {others}")
    return chosen
