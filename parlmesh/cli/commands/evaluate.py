"""`parlmesh evaluate`: runs whole episodes with a model from a file or a run's folder; needs no fleet."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from parlmesh.cli.connection import AsJson
from parlmesh.cli.screen.output_tables import print_table, say
from parlmesh.errors import FailedPrecondition, FleetError
from parlmesh.exception_text import place, sentence_at


def evaluate(
    model: Annotated[Path, typer.Argument(help="a run's folder, or a .safetensors file")],
    episodes: Annotated[int, typer.Option(min=1, max=10_000, help="whole episodes")] = 20,
    version: Annotated[
        int, typer.Option(min=0, help="version in a run's folder; 0 = the promoted one, else the best")
    ] = 0,
    environment: Annotated[str, typer.Option(metavar="ID", help="environment, if the file does not name it")] = "",
    seed: Annotated[int, typer.Option(min=0, help="seed of the environments")] = 0,
    sampled: Annotated[bool, typer.Option("--sampled", help="sample actions as in training")] = False,
    video: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="record one more episode as .gif, or as .mp4 with imageio-ffmpeg"),
    ] = None,
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="record as many more episodes as a Minari data set, e.g. taxi/good-v0")
    ] = "",
    plugin: Annotated[
        list[str] | None,
        typer.Option(metavar="SOURCE", help="plug-in of the environment or the network; repeatable"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run whole episodes with a model and print their mean return with a 95 % interval."""
    from parlmesh.api.episodes import evaluate_policy
    from parlmesh.api.policy import load_policy
    from parlmesh.api.video import check_video, film

    if video is not None:
        check_video(video)
    if dataset:
        from parlmesh.api.offline_data import check_dataset, record_episodes

        check_dataset(dataset)
    policy = load_policy(model, version=version, environment=environment or None, plugins=plugin or ())
    with _environments_errors():
        found = evaluate_policy(policy, episodes=episodes, seed=seed, sampled=sampled)
    returns = [float(value) for value in found.returns]
    half = found.half_width if episodes > 1 else None
    if as_json:
        told = {"model": str(model), "episodes": episodes, "sampled": sampled, "mean_return": found.mean}
        typer.echo(json.dumps(told | {"half_width_95": half, "returns": returns}))
    else:
        spread = f"{half:.2f}" if half is not None else "-"
        row = [str(episodes), f"{found.mean:.2f}", spread, f"{min(returns):.2f}", f"{max(returns):.2f}"]
        print_table([">episodes", ">mean return", ">± 95 %", ">lowest", ">highest"], [row], nothing="no episodes")
    if video is not None:
        with _environments_errors():
            frames = film(policy, video, seed=seed)
        say(f"{video}: {frames} frames", to_stderr=as_json)
    if dataset:
        with _environments_errors():
            steps = record_episodes(policy, dataset, episodes=episodes, seed=seed, sampled=sampled)
        say(f"{dataset}: {episodes} episodes, {steps:,} steps", to_stderr=as_json)


@contextmanager
def _environments_errors() -> Iterator[None]:
    """What the user's environment raises, sys.exit included, is said in one sentence with its place."""
    try:
        yield
    except FleetError:
        raise
    except (Exception, SystemExit) as error:
        if not place(error):
            raise
        raise FailedPrecondition(f"the environment failed: {sentence_at(error)}", reason="ENVIRONMENT") from error
