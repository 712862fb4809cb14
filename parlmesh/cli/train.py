"""`parlmesh train`: pause, resume or stop the run of a running learner. Runs begin with `parlmesh up`."""

from typing import TYPE_CHECKING, Annotated

import typer

from parlmesh.cli.connection import CALL_SECONDS, LEARNER_DEFAULT, LearnerAddress, learner_at, run, security_of

if TYPE_CHECKING:
    from parlmesh.v1.training_service_pb2 import Training

app = typer.Typer(no_args_is_help=True, help="Pause, resume or stop a running training.")

RunId = Annotated[str, typer.Option("--run", metavar="ID", help="the run; empty = the learner's only one")]


@app.command()
def pause(context: typer.Context, run_id: RunId = "", learner: LearnerAddress = LEARNER_DEFAULT) -> None:
    """Stop collecting and training until resumed; the policy stays served."""

    async def ask() -> "Training":
        from parlmesh.v1.training_service_pb2 import PauseTrainingRequest

        async with learner_at(learner, security_of(context)) as stub:
            return (await stub.PauseTraining(PauseTrainingRequest(run_id=run_id), timeout=CALL_SECONDS)).training

    _say(run(ask()))


@app.command()
def resume(context: typer.Context, run_id: RunId = "", learner: LearnerAddress = LEARNER_DEFAULT) -> None:
    """Go on with a paused run."""

    async def ask() -> "Training":
        from parlmesh.v1.training_service_pb2 import ResumeTrainingRequest

        async with learner_at(learner, security_of(context)) as stub:
            return (await stub.ResumeTraining(ResumeTrainingRequest(run_id=run_id), timeout=CALL_SECONDS)).training

    _say(run(ask()))


@app.command()
def stop(context: typer.Context, run_id: RunId = "", learner: LearnerAddress = LEARNER_DEFAULT) -> None:
    """End a run after the update in hand, with a checkpoint."""

    async def ask() -> "Training":
        from parlmesh.v1.training_service_pb2 import StopTrainingRequest

        async with learner_at(learner, security_of(context)) as stub:
            return (await stub.StopTraining(StopTrainingRequest(run_id=run_id), timeout=CALL_SECONDS)).training

    _say(run(ask()))


def _say(training: "Training") -> None:
    from parlmesh.cli.view import state_name

    typer.echo(f"{training.run_id} is {state_name(training.state)} at {training.progress.steps:,} steps")
