"""`parlmesh bench`: measures how fast a fleet trains on this machine, and how it spends its time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parlmesh.cli.connection import AsJson

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

app = typer.Typer(no_args_is_help=True, help="Measure this machine.")

LONGEST_SECONDS = 600.0
NEVER = 10**12
LEAST_SHARE = 0.005


@app.callback()
def bench() -> None:
    """Measure this machine."""


@app.command()
def train(
    steps: Annotated[int, typer.Option(metavar="N", min=1000, help="environment steps to train")] = 200_000,
    actors: Annotated[int, typer.Option(metavar="N", min=1, max=256, help="actor processes")] = 2,
    serial: Annotated[bool, typer.Option("--serial", help="one process instead of a fleet")] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="YAML file of `parlmesh up`, or the name of a preset"),
    ] = None,
    environment: Annotated[
        str | None, typer.Option(metavar="ID", help="gymnasium id; default: that of the file, or CartPole-v1")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0)] = 0,
    profile: Annotated[bool, typer.Option("--profile", help="show how learner and actors spend their time")] = False,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="one setting of `parlmesh up`; repeatable")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train for a number of steps on a new local fleet and print the trained environment steps per second."""
    import json
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"training.evaluation_interval_steps={NEVER}", "training.evaluation_episodes=1"]
        if profile:
            overrides.append(f"learner.profile={folder}/learner.profile.json")
            overrides.append(f"actor.profile={folder}/actor.profile.json")
        what = ["--seed", str(seed), "--steps", str(steps)]
        what += ["--config", str(config)] if config is not None else []
        what += ["--environment", environment] if environment is not None else []
        run = _trained(
            Path(folder),
            what,
            ["--serial"] if serial else ["--actors", str(actors)],
            [*overrides, *(assignments or ())],
        )
        if as_json:
            typer.echo(json.dumps(run))
            return
        typer.echo(
            f"{run['steps_per_second']:,.0f} trained steps/s over {run['steps']:,} steps in {run['seconds']:.1f} s"
        )
        if profile:
            _print_profile(Path(folder), ["learner"] if serial else ["learner", "actor"])


def _trained(folder: Path, what: "Sequence[str]", fleet: "Sequence[str]", overrides: "Sequence[str]") -> dict[str, Any]:
    """Runs `parlmesh up` and returns its summary."""
    import subprocess
    import sys

    from parlmesh.errors import Unavailable

    command = [sys.executable, "-m", "parlmesh.cli", "up", "--plain", "--free-ports", "--no-goal", *what, *fleet]
    command += ["--runs-dir", str(folder), "--run-id", "run"]
    command += [part for override in overrides for part in ("--set", override)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)  # noqa: S603
    if done.returncode != 0:
        raise Unavailable(
            f"parlmesh up ended with code {done.returncode}: {(done.stderr or done.stdout)[-600:].strip()}"
        )
    summary: dict[str, Any] = _read(folder / "run" / "summary.json")
    return summary


def _read(file: Path) -> Any:
    """Reads a JSON file that a run of `parlmesh up` wrote."""
    import json

    from parlmesh.errors import Unavailable

    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Unavailable(f"{file.name} of the run cannot be read: {str(error).splitlines()[0]}") from None


def _print_profile(folder: Path, services: "Sequence[str]") -> None:

    from parlmesh.cli.screen.output_tables import print_table

    rows: list[list[str]] = []
    for service in services:
        file = folder / f"{service}.profile.json"
        if file.exists():
            rows += profile_rows(service, _read(file))
    print_table(["process", "thread", "phase", ">share", ">seconds", ">processor s"], rows, nothing="no profile")
    typer.echo(
        "shares of each thread's time from the first update or step to the last; of several actors one is shown;\n"
        "seconds without processor time were spent waiting"
    )


def profile_rows(service: str, spent: "Sequence[dict[str, Any]]") -> "list[list[str]]":
    """The phases worth a line, grouped by thread, with their share of that thread's time."""
    return list(_profile_rows(service, spent))


def _profile_rows(service: str, spent: "Sequence[dict[str, Any]]") -> "Iterator[list[str]]":
    roles = list(dict.fromkeys(row["thread"] for row in spent))
    busiest = sorted(roles, key=lambda role: -sum(row["cpu_seconds"] for row in spent if row["thread"] == role))
    for role in busiest:
        mine = [row for row in spent if row["thread"] == role]
        total = sum(row["seconds"] for row in mine) or 1.0
        for index, row in enumerate(mine):
            share = row["seconds"] / total
            if share >= LEAST_SHARE or row["cpu_seconds"] / total >= LEAST_SHARE:
                name = [service, role] if index == 0 else ["", ""]
                yield [*name, row["phase"], f"{share:.1%}", f"{row['seconds']:.2f}", f"{row['cpu_seconds']:.2f}"]
