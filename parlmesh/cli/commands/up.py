"""`parlmesh up`: runs a fleet on this machine, from start to summary."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from parlmesh.local.process_configs import RunPaths, Session, UpConfig


def up(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="YAML file, or the name of a preset such as ppo-acrobot"),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="one setting, e.g. training.num_envs=64; repeatable"),
    ] = None,
    environment: Annotated[str | None, typer.Option(metavar="ID", help="gymnasium id; default CartPole-v1")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", min=0, help="seed of everything random")] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", min=1, help="step budget")] = None,
    goal: Annotated[
        float | None, typer.Option(metavar="RETURN", help="end when an evaluation reaches this return")
    ] = None,
    no_goal: Annotated[bool, typer.Option("--no-goal", help="use the whole step budget")] = False,
    run_id: Annotated[str | None, typer.Option(metavar="ID", help="name of the run and of its directory")] = None,
    resume: Annotated[str, typer.Option(metavar="RUN", help="continue this run, an id or a directory")] = "",
    actors: Annotated[int | None, typer.Option(metavar="N", min=1, max=256, help="actor processes; default 2")] = None,
    serial: Annotated[bool, typer.Option("--serial", help="one process, no actors")] = False,
    plugins: Annotated[
        list[str] | None,
        typer.Option("--plugin", metavar="SOURCE", help="module:attribute or file.py:attribute; repeatable"),
    ] = None,
    runs_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="where runs are kept; default ./runs")] = None,
    port_scheduler: Annotated[
        int | None, typer.Option(metavar="PORT", min=0, max=65535, help="default 50051; 0 = any free port")
    ] = None,
    port_learner: Annotated[
        int | None, typer.Option(metavar="PORT", min=0, max=65535, help="default 50052; 0 = any free port")
    ] = None,
    dashboard: Annotated[
        bool | None, typer.Option("--dashboard/--no-dashboard", help="serve the web page; on by default")
    ] = None,
    free_ports: Annotated[bool, typer.Option("--free-ports", help="use any free port for everything")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="keep the fleet running after the end, until Ctrl-C")] = False,
    plain: Annotated[bool, typer.Option("--plain", "--no-live", help="lines instead of the live table")] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="print the effective settings and exit")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="print the result as one JSON object; the rest goes to stderr")
    ] = False,
) -> None:
    """Start a scheduler, a learner and actors on this machine and train until the goal or the step budget.

    Processes that die are restarted. All output goes to runs/<id>/. Ctrl-C ends the fleet gracefully, a second one
    immediately. Exit code 0 when the goal or the budget was reached.
    """
    from parlmesh.config import to_yaml
    from parlmesh.local.presets import settings_file
    from parlmesh.local.process_configs import Session

    keys = {
        "actors": actors,
        "serial": True if serial else None,
        "runs_dir": runs_dir,
        "run_id": run_id,
        "training.seed": seed,
        "training.step_budget": steps,
        "training.environment.id": environment,
        "training.goal_return": "null" if no_goal else goal,
        "ports.scheduler": 0 if free_ports else port_scheduler,
        "ports.learner": 0 if free_ports else port_learner,
        "ports.metrics": 0 if free_ports else None,
        "ports.dashboard": 0 if free_ports else None,
        "dashboard": dashboard,
    }
    overrides = [*(assignments or ()), *(f"{key}={value}" for key, value in keys.items() if value is not None)]
    file = settings_file(config) if config is not None else None
    settings, paths = _settled(file, overrides, resume, runs_dir)
    if plugins:
        # Absolute paths, because a run may be resumed from another folder.
        given = [str(Path(each).resolve()) if ".py:" in each else each for each in plugins]
        settings = settings.model_copy(update={"plugins": (*settings.plugins, *given)})
    if print_config:
        typer.echo(to_yaml(settings), nl=False)
        return
    again = ["--config", str(config)] if config is not None else []
    again += ["--environment", environment] if environment is not None else []
    again += [part for assignment in assignments or () for part in ("--set", assignment)]
    again += [part for plugin in plugins or () for part in ("--plugin", plugin)]
    session = Session(keep=keep, plain=plain or as_json, as_json=as_json, again=tuple(again))
    raise typer.Exit(_run(settings, paths, session, resumed=bool(resume)))


def _settled(
    file: Path | None, overrides: list[str], resume: str, runs_dir: Path | None
) -> "tuple[UpConfig, RunPaths]":
    """The effective settings and the run's directory; writes nothing."""
    import os
    from datetime import datetime

    from parlmesh.config import load
    from parlmesh.errors import NotFound
    from parlmesh.local.process_configs import RunPaths, UpConfig, environment_id, fresh_run_id

    root: Path | None = None
    if resume:
        places = [(runs_dir or Path("runs")) / resume, Path(resume)]
        root = next((place for place in places if RunPaths(place).settings.exists()), None)
        if root is None:
            raise NotFound(f"no run at {' or '.join(str(place) for place in places)}; `ls runs` shows what there is")
        file = file or RunPaths(root).settings
    settings = load(UpConfig, file=file, overrides=overrides, environment=os.environ, prefix="PARLMESH_UP")
    if root is None:
        run_id = settings.run_id or fresh_run_id(environment_id(settings), datetime.now().astimezone())
        root = settings.runs_dir / run_id
    return settings.model_copy(update={"run_id": root.name}), RunPaths(root)


def _run(settings: "UpConfig", paths: "RunPaths", session: "Session", *, resumed: bool) -> int:
    import asyncio

    from parlmesh.cli.up_session import train
    from parlmesh.errors import AlreadyExists
    from parlmesh.exit_codes import EXIT_CONFIGURATION
    from parlmesh.local.fleet_processes import refuse_busy_ports
    from parlmesh.local.process_configs import up_settings
    from parlmesh.processes import write_settings
    from parlmesh.rpc.service_main import keep_files_private

    refuse_busy_ports(settings)
    keep_files_private()
    try:
        paths.root.mkdir(parents=True, exist_ok=resumed)
    except FileExistsError:
        raise AlreadyExists(
            f"{paths.root} exists; continue it with --resume {paths.root.name} or choose another --run-id"
        ) from None
    before = paths.settings.read_bytes() if resumed else None
    write_settings(paths.settings, up_settings(settings, paths.root.name))
    code = asyncio.run(train(settings, paths, session))
    if code == EXIT_CONFIGURATION and before is not None:
        # A run that cannot continue with these settings can still continue with its old ones.
        paths.settings.write_bytes(before)
    return code
