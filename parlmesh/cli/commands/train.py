"""`parlmesh train`: creates, controls and lists the runs of a running learner."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from parlmesh.cli.connection import (
    CALL_SECONDS,
    LEARNER_DEFAULT,
    AsJson,
    LearnerAddress,
    RunId,
    all_pages,
    ask,
    learner_at,
    run,
    security_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parlmesh.security import SecurityConfig
    from parlmesh.v1.training_service_pb2 import Training
    from parlmesh.v1.training_service_pb2_grpc import TrainingServiceAsyncStub

_LOOK_SECONDS = 1.0

app = typer.Typer(no_args_is_help=True, help="Create, start, pause, resume, stop and list runs.")


@app.command("list")
def list_trainings(context: typer.Context, learner: LearnerAddress = LEARNER_DEFAULT, as_json: AsJson = False) -> None:
    """List all runs, newest first, including ended ones."""

    from parlmesh.cli.commands.status import show_trainings
    from parlmesh.cli.screen.output_tables import print_json
    from parlmesh.v1.training_service_pb2 import ListTrainingsRequest

    request = ListTrainingsRequest()
    trainings = ask(learner_at, learner, context, lambda stub: all_pages(stub.ListTrainings, request, "trainings"))
    if as_json:
        print_json(trainings)
    else:
        show_trainings(trainings)


@app.command()
def create(
    context: typer.Context,
    environment: Annotated[str | None, typer.Option(metavar="ID", help="gymnasium id")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", min=0, help="seed of everything random")] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", min=1, help="step budget")] = None,
    goal: Annotated[float | None, typer.Option(metavar="RETURN", help="end when evaluations reach this return")] = None,
    no_goal: Annotated[bool, typer.Option("--no-goal", help="use the whole step budget")] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="one key of the learner's training section; repeatable"),
    ] = None,
    run_id: Annotated[str, typer.Option("--run", metavar="ID", help="its name; empty = chosen by the learner")] = "",
    start: Annotated[bool, typer.Option("--start", help="start it too")] = False,
    learner: LearnerAddress = LEARNER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create a run; it waits to be started."""
    from parlmesh.local.process_configs import with_own_goal

    given: dict[str, Any] = {"environment.id": environment, "seed": seed, "step_budget": steps, "goal_return": goal}
    configuration = _nested({name: value for name, value in given.items() if value is not None}, assignments or ())
    if no_goal:
        configuration["goal_return"] = None

    async def created(stub: "TrainingServiceAsyncStub") -> "Training":
        from parlmesh.v1.training_service_pb2 import CreateTrainingRequest, StartTrainingRequest

        request = CreateTrainingRequest(run_id=run_id)
        request.configuration.update(with_own_goal(configuration))
        training = (await stub.CreateTraining(request, timeout=CALL_SECONDS)).training
        if start:
            wanted = StartTrainingRequest(run_id=training.run_id)
            training = (await stub.StartTraining(wanted, timeout=CALL_SECONDS)).training
        return training

    _say(ask(learner_at, learner, context, created), as_json=as_json)


@app.command("start")
def start_training(
    context: typer.Context, run_id: RunId = "", learner: LearnerAddress = LEARNER_DEFAULT, as_json: AsJson = False
) -> None:
    """Start a created run."""

    from parlmesh.v1.training_service_pb2 import StartTrainingRequest

    request = StartTrainingRequest(run_id=run_id)
    answer = ask(learner_at, learner, context, lambda stub: stub.StartTraining(request, timeout=CALL_SECONDS))
    _say(answer.training, as_json=as_json)


@app.command()
def pause(
    context: typer.Context, run_id: RunId = "", learner: LearnerAddress = LEARNER_DEFAULT, as_json: AsJson = False
) -> None:
    """Stop collecting and training until resumed; the policy is still served."""

    from parlmesh.v1.training_service_pb2 import PauseTrainingRequest

    request = PauseTrainingRequest(run_id=run_id)
    answer = ask(learner_at, learner, context, lambda stub: stub.PauseTraining(request, timeout=CALL_SECONDS))
    _say(answer.training, as_json=as_json)


@app.command()
def resume(
    context: typer.Context, run_id: RunId = "", learner: LearnerAddress = LEARNER_DEFAULT, as_json: AsJson = False
) -> None:
    """Continue a paused run."""

    from parlmesh.v1.training_service_pb2 import ResumeTrainingRequest

    request = ResumeTrainingRequest(run_id=run_id)
    answer = ask(learner_at, learner, context, lambda stub: stub.ResumeTraining(request, timeout=CALL_SECONDS))
    _say(answer.training, as_json=as_json)


@app.command()
def stop(
    context: typer.Context, run_id: RunId = "", learner: LearnerAddress = LEARNER_DEFAULT, as_json: AsJson = False
) -> None:
    """End a run after the current update and write a checkpoint."""

    from parlmesh.v1.training_service_pb2 import StopTrainingRequest

    request = StopTrainingRequest(run_id=run_id)
    answer = ask(learner_at, learner, context, lambda stub: stub.StopTraining(request, timeout=CALL_SECONDS))
    _say(answer.training, stopping=True, as_json=as_json)


@app.command()
def wait(
    context: typer.Context,
    run_id: RunId = "",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="stop waiting after this long")] = 7
    * 86_400.0,
    learner: LearnerAddress = LEARNER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Wait for the end of a run; exit code 1 unless it reached its goal or used its budget.

    Keeps waiting while the learner starts or restarts, so it suits batch jobs.
    """
    say_training(run(ended(learner, security_of(context), run_id, timeout)), as_json=as_json)


def say_training(training: "Training", *, as_json: bool) -> None:
    """Prints the result of an ended run; exit code 1 unless it reached its goal or used its budget."""
    from parlmesh.v1.training_service_pb2 import TrainingState

    _say(training, as_json=as_json)
    if training.state != TrainingState.TRAINING_STATE_FINISHED:
        raise typer.Exit(1)


async def ended(learner: str, security: "SecurityConfig", run_id: str, seconds: float) -> "Training":
    """Waits for the end of a run; raises DeadlineExceeded when it takes longer."""
    import asyncio

    import grpc

    from parlmesh.cli.screen.fleet_view import FINAL_STATES
    from parlmesh.errors import DeadlineExceeded
    from parlmesh.v1.training_service_pb2 import GetTrainingRequest

    last = ""
    try:
        async with asyncio.timeout(seconds), learner_at(learner, security) as stub:
            while True:
                try:
                    answer = await stub.GetTraining(GetTrainingRequest(run_id=run_id), timeout=CALL_SECONDS)
                    if answer.training.state in FINAL_STATES:
                        return answer.training
                    last = f"it is at {answer.training.progress.steps:,} steps"
                except grpc.aio.AioRpcError as error:
                    if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                        raise
                    last = f"no learner answers at {learner}"
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        raise DeadlineExceeded(f"the run had not ended after {seconds:g} s; {last}") from None


def _say(training: "Training", *, stopping: bool = False, as_json: bool = False) -> None:
    from parlmesh.cli.screen.fleet_view import FINAL_STATES, state_name
    from parlmesh.cli.screen.output_tables import print_json, say

    if as_json:
        print_json([training])
        return
    # A run ends after the current update, a moment after the answer.
    state = "stopping" if stopping and training.state not in FINAL_STATES else state_name(training.state)
    say(f"{training.run_id} is {state} at {training.progress.steps:,} steps")


def _nested(given: dict[str, Any], assignments: "Sequence[str]") -> dict[str, Any]:
    """Nests dotted keys, such as {"environment.id": "x"} and `ppo.epochs=2`, into sections."""
    import yaml

    from parlmesh.errors import InvalidInput

    pairs = list(given.items())
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise InvalidInput(f"--set takes key=value, got {assignment!r}")
        try:
            pairs.append((key.strip(), yaml.safe_load(text)))
        except yaml.YAMLError as error:
            raise InvalidInput(f"--set {key.strip()}: {text!r} is not valid YAML") from error
    found: dict[str, Any] = {}
    for key, value in pairs:
        section = found
        *sections, last = key.split(".")
        for name in sections:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise InvalidInput(f"--set {key}: {name} already has a value and is not a section")
        section[last] = value
    return found
