"""`parlmesh models`: lists, promotes, deletes and exports the models of a running learner."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parlmesh.cli.connection import (
    CALL_SECONDS,
    LEARNER_DEFAULT,
    AsJson,
    LearnerAddress,
    RunId,
    all_pages,
    ask,
    models_at,
    run,
    security_of,
)
from parlmesh.cli.screen.ages import age_of
from parlmesh.cli.screen.output_tables import print_json, print_object, print_table, say
from parlmesh.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parlmesh.v1.model_service_pb2 import Model
    from parlmesh.v1.model_service_pb2_grpc import ModelServiceAsyncStub

app = typer.Typer(no_args_is_help=True, help="List, show, promote, delete and export models.")

EXPORT_SECONDS = 300.0
FORMATS = {".safetensors": "MODEL_FORMAT_SAFETENSORS", ".onnx": "MODEL_FORMAT_ONNX"}

Version = Annotated[int, typer.Argument(min=1, help="as `models list` shows it")]
AnyVersion = Annotated[int, typer.Option("--version", min=0, help="0 = the promoted one, else the best evaluated")]


@app.command("list")
def list_models(
    context: typer.Context,
    run_id: Annotated[str, typer.Option("--run", metavar="ID", help="only this run")] = "",
    learner: LearnerAddress = LEARNER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the models, newest first."""

    from parlmesh.v1.model_service_pb2 import ListModelsRequest

    request = ListModelsRequest(run_id=run_id)
    models = ask(models_at, learner, context, lambda stub: all_pages(stub.ListModels, request, "models"))
    _show(models, as_json=as_json)


@app.command()
def show(
    context: typer.Context,
    version: AnyVersion = 0,
    run_id: RunId = "",
    learner: LearnerAddress = LEARNER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show one model with its metadata."""

    async def found(stub: "ModelServiceAsyncStub") -> "Model":
        from parlmesh.v1.model_service_pb2 import GetModelRequest

        wanted = version or await _preferred(stub, run_id)
        return (await stub.GetModel(GetModelRequest(run_id=run_id, version=wanted), timeout=CALL_SECONDS)).model

    model = ask(models_at, learner, context, found)
    _show([model], as_json=as_json)
    if not as_json:
        for name, value in sorted(model.metadata.items()):
            say(f"{name}: {value:g}" if isinstance(value, float) else f"{name}: {value}")
        say(f"sha256: {model.digest.hex()}")


@app.command()
def promote(
    context: typer.Context,
    version: Version,
    run_id: RunId = "",
    learner: LearnerAddress = LEARNER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Make a version the default; promoting an older one is a rollback."""

    from parlmesh.v1.model_service_pb2 import PromoteModelRequest

    request = PromoteModelRequest(run_id=run_id, version=version)
    answer = ask(models_at, learner, context, lambda stub: stub.PromoteModel(request, timeout=CALL_SECONDS))
    model = answer.model
    if as_json:
        print_json([model])
    else:
        say(f"version {model.version} of {model.run_id} is promoted")


@app.command()
def delete(
    context: typer.Context,
    version: Version,
    run_id: RunId = "",
    learner: LearnerAddress = LEARNER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete a model; fails for the promoted one."""

    from parlmesh.v1.model_service_pb2 import DeleteModelRequest

    request = DeleteModelRequest(run_id=run_id, version=version)
    ask(models_at, learner, context, lambda stub: stub.DeleteModel(request, timeout=CALL_SECONDS))
    if as_json:
        print_object(run_id=run_id, deleted_version=version)
    else:
        say(f"version {version} is deleted")


@app.command()
def export(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="output: .onnx, .safetensors, or a new folder for a model hub")],
    version: AnyVersion = 0,
    folder: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="read a run's folder instead of asking a learner")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="the best evaluated model, even if another is promoted")] = False,
    run_id: RunId = "",
    learner: LearnerAddress = LEARNER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Write a model to a file in a common format, or to a folder with a model card."""
    if folder is not None:
        from parlmesh.api.model_export import export_model

        written = export_model(folder, file, version=version, best=best)
        if as_json:
            print_object(file=file, size_bytes=sum(each.stat().st_size for each in written))
        for each in written if not as_json else ():
            say(f"{each}: {each.stat().st_size:,} bytes")
        return
    if best or not file.suffix:
        wish = "--best" if best else f"the folder {file}"
        raise InvalidInput(f"{wish} needs a run's folder: --from runs/...", reason="NO_RUN_FOLDER")
    if file.suffix not in FORMATS:
        raise InvalidInput(f"{file} must end in {' or '.join(FORMATS)}, which sets the format")

    async def fetch() -> bytes:
        from parlmesh.v1.model_service_pb2 import ExportModelRequest, ModelFormat

        wanted = ModelFormat.Value(FORMATS[file.suffix])
        async with models_at(learner, security_of(context)) as stub:
            chosen = version or await _preferred(stub, run_id)
            request = ExportModelRequest(run_id=run_id, version=chosen, format=wanted)
            answers = stub.ExportModel(request, timeout=EXPORT_SECONDS)
            return b"".join([answer.data async for answer in answers])

    data = run(fetch())
    partial = file.with_name(f".{file.name}.partial")
    partial.write_bytes(data)
    partial.rename(file)
    if as_json:
        print_object(file=file, size_bytes=len(data))
    else:
        say(f"{file}: {len(data):,} bytes")


async def _preferred(stub: "ModelServiceAsyncStub", run_id: str) -> int:
    """The default version: the promoted one, else the best evaluated; 0 leaves the choice to the learner."""
    from parlmesh.v1.model_service_pb2 import ListModelsRequest

    models: list[Model] = await all_pages(stub.ListModels, ListModelsRequest(run_id=run_id), "models")
    evaluated = [model for model in models if "evaluation_return" in model.metadata]
    several = len({model.run_id for model in models}) > 1
    if several or not evaluated or any(model.promoted for model in models):
        return 0
    return max(evaluated, key=lambda model: (model.metadata["evaluation_return"], model.version)).version


def _show(models: "Sequence[Model]", *, as_json: bool) -> None:
    if as_json:
        print_json(models)
        return
    now = time.time()
    print_table(
        ["run", ">version", "promoted", "environment?", "algorithm?", ">steps?", ">evaluation", ">bytes?", "made?"],
        [
            [
                model.run_id,
                str(model.version),
                "yes" if model.promoted else "",
                _known(model, "environment"),
                _known(model, "algorithm"),
                _known(model, "steps"),
                _known(model, "evaluation_return"),
                f"{model.size_bytes:,}",
                age_of(model.create_time, now),
            ]
            for model in models
        ],
        nothing="no model yet",
    )


def _known(model: "Model", name: str) -> str:
    if name not in model.metadata:
        return "–"
    value = model.metadata[name]
    return f"{value:,.10g}" if isinstance(value, float) else str(value)
