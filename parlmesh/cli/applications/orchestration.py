"""`parlmesh orchestration`: trains variants of an orchestrator and compares them."""

from pathlib import Path
from typing import Annotated

import typer

from parlmesh.cli.connection import AsJson

app = typer.Typer(no_args_is_help=True, help="Train orchestrators that learn to work in parallel.")

PRESET = "parl-orchestrator"


@app.command()
def compare(
    variant: Annotated[
        list[str] | None, typer.Option("--variant", help="variant to train; repeatable; see `variants`")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="runs of each variant")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="environment steps of each run")] = 400_000,
    actors: Annotated[int, typer.Option(min=0, max=256, help="actor processes; 0 = serial runs")] = 0,
    runs_dir: Annotated[Path, typer.Option(metavar="DIR", help="where runs are kept; finished ones are reused")] = Path(
        "runs/orchestration"
    ),
    family: Annotated[str, typer.Option(help="family of held-out jobs in the table")] = "wide_search",
    picture: Annotated[Path, typer.Option(metavar="FILE")] = Path("orchestration.png"),
    as_json: AsJson = False,
) -> None:
    """Train each variant, print its results on held-out jobs, and draw the curves."""
    from parlmesh.cli.screen.output_tables import print_object, print_table, say
    from parlmesh.orchestration.jobs.families import check_families
    from parlmesh.orchestration.jobs.reference_orchestrators import single_agent
    from parlmesh.orchestration.training.comparison import COLUMNS, draw, read_run, rows_of
    from parlmesh.orchestration.training.evaluation import score
    from parlmesh.orchestration.training.variants import COMPARED, variant_named

    check_families([family], "held_out")
    chosen = [variant_named(name) for name in variant or COMPARED]
    runs = []
    for each in chosen:
        for seed in range(seeds):
            run_id = f"{each.name.replace(', ', '-').replace(' ', '-')}-{steps}-{seed}"
            if not (runs_dir / run_id / "summary.json").exists():
                say(f"training {each.name}, seed {seed}", to_stderr=True)
                _train(each, run_id, runs_dir, seed, steps, actors)
            runs.append(read_run(runs_dir / run_id, each, seed))
    rows = rows_of(runs, family, score(single_agent, family))
    draw(runs, picture)
    if as_json:
        names = [column.strip(">?") for column in COLUMNS]
        for row in rows:
            print_object(family=family, picture=picture, **dict(zip(names, row, strict=True)))
        return
    print_table(COLUMNS, rows, nothing="nothing to compare")
    say(f"held-out jobs of {family}; speed-up is work per critical step against a single agent; curves in {picture}")


@app.command()
def variants(as_json: AsJson = False) -> None:
    """List the variants that `compare` can train."""
    from parlmesh.cli.screen.output_tables import print_object, print_table
    from parlmesh.orchestration.training.variants import VARIANTS

    if as_json:
        for each in VARIANTS.values():
            print_object(variant=each.name, about=each.about)
        return

    print_table(["variant", "what is different"], [[each.name, each.about] for each in VARIANTS.values()], nothing="")


def _train(variant: object, run_id: str, runs_dir: Path, seed: int, steps: int, actors: int) -> None:
    import subprocess
    import sys

    from parlmesh.errors import FleetError
    from parlmesh.orchestration.training.comparison import settings_of
    from parlmesh.orchestration.training.variants import Variant

    assert isinstance(variant, Variant)
    command = [sys.executable, "-m", "parlmesh.cli", "up", "--config", PRESET, "--plain", "--free-ports"]
    command += ["--runs-dir", str(runs_dir), "--run-id", run_id, "--seed", str(seed), "--steps", str(steps)]
    command += ["--actors", str(actors)] if actors else ["--serial"]
    for setting in settings_of(variant):
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own command
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no word"]
        raise FleetError(
            f"the training {run_id} ended with exit code {done.returncode}: {last[0]}", reason="TRAINING_FAILED"
        )
