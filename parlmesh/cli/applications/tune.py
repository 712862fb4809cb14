"""`parlmesh tune`: searches for good settings on a fleet."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parlmesh.cli.connection import run, security_of

if TYPE_CHECKING:
    from parlmesh.security import SecurityConfig
    from parlmesh.tuning.config import TuneConfig
    from parlmesh.tuning.coordinator import Told
    from parlmesh.tuning.study import Study

SETTINGS = "tune.yaml"


def tune(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="the study's folder; an existing study is continued")],
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="YAML file of the study; required the first time")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="one setting, e.g. steps=50000; repeatable")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="trials of the whole study, earlier ones included")
    ] = None,
    parallel: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="trials at once")] = 2,
    scheduler: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="a running fleet whose actors have the tuning plug-in; empty = start one"
        ),
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="print the result as one JSON object; the rest goes to stderr")
    ] = False,
) -> None:
    """Search for good settings; the actors of a fleet train every trial in parts.

    Ctrl-C stops it; the same command continues it. Writes the best settings to best.yaml, for `parlmesh up --config`.
    """
    import json

    from parlmesh.errors import InvalidInput
    from parlmesh.optional_packages import require
    from parlmesh.processes import write_settings

    require("parlmesh tune", "tune", "optuna", "cmaes")
    settings = _settings(folder, config, [*(assignments or ()), *([f"trials={trials}"] if trials else ())])
    from parlmesh.config import effective
    from parlmesh.tuning.search_space import check_search

    check_search(settings)
    found = _resumable(folder)
    if found is not None and _fixed(found) != _fixed(settings):
        raise InvalidInput(f"{folder} has a study with other settings; change only trials, or use another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_settings(folder / SETTINGS, effective(settings))
    summary = run(_tuned(folder, settings, parallel, scheduler, security_of(context), quiet=as_json))
    if as_json:
        typer.echo(json.dumps(summary))


def _settings(folder: Path, file: Path | None, overrides: list[str]) -> "TuneConfig":
    from parlmesh.config import load
    from parlmesh.errors import NotFound
    from parlmesh.tuning.config import TuneConfig

    kept = folder / SETTINGS
    if file is None and not kept.exists():
        raise NotFound(f"{folder} has no study yet; --config names the file that describes it")
    return load(TuneConfig, file=file or kept, overrides=overrides, prefix="PARLMESH_TUNE")


def _resumable(folder: Path) -> "TuneConfig | None":
    from parlmesh.config import load
    from parlmesh.tuning.config import TuneConfig

    kept = folder / SETTINGS
    return load(TuneConfig, file=kept, prefix="PARLMESH_TUNE") if kept.exists() else None


def _fixed(config: "TuneConfig") -> dict[str, Any]:
    """Settings that all trials of a study must share."""
    return config.model_dump(mode="json", exclude={"trials", "rung_seconds"})


async def _tuned(
    folder: Path, config: "TuneConfig", parallel: int, scheduler: str, security: "SecurityConfig", *, quiet: bool
) -> dict[str, Any]:
    import asyncio
    import signal

    from parlmesh.client import PARLController
    from parlmesh.tuning.coordinator import Coordinator
    from parlmesh.tuning.search_space import defaults
    from parlmesh.tuning.study import opened_study

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    say = _sayer(quiet)
    with opened_study(folder, config) as study:
        if study.orphans:
            say(f"{study.orphans} trials of an earlier call were interrupted and are tried again")
        outside = sorted(set(config.search) - set(defaults(config))) if config.try_defaults else []
        if outside:
            say(f"the first trial draws {', '.join(outside)}, set outside its range, so there is no baseline")
        if parallel > 1:
            say(
                f"{parallel} trials at once: the order in which they end decides the next ones, so it is not repeatable"
            )
        async with PARLController(scheduler, security=security) as controller:
            if not scheduler:
                plugins = ["parlmesh.tuning.plugin:plugin", *config.plugins]
                await controller.initialize(parallel, processes=parallel, actor={"plugins": plugins})
            await Coordinator(controller, study, config, parallel, lambda told: say(_line(told))).run(stop)
        return _end(folder, config, study, say, stopped=stop.is_set())


def _end(folder: Path, config: "TuneConfig", study: "Study", say: Any, *, stopped: bool) -> dict[str, Any]:
    from parlmesh.tuning.report import draw_importances, write_best

    preset, importances = write_best(folder, config, study), study.importances()
    draw_importances(folder, importances)
    best, counts = study.best(), study.counts()
    say(f"{'stopped; ' if stopped else ''}trials: {', '.join(f'{count} {word}' for word, count in counts.items())}")
    if best is not None:
        number, value, settings = best
        first = study.first_value()
        say(
            f"best: trial {number}, {value:g}"
            + (f"; the settings as they were: {first:g}" if first is not None else "")
        )
        for key, setting in settings.items():
            weight = f"   importance {importances[key]:.2f}" if key in importances else ""
            say(f"  {key} = {setting:g}{weight}" if isinstance(setting, float) else f"  {key} = {setting}{weight}")
        say(f"parlmesh up --config {preset}")
    return {
        "stopped": stopped,
        **counts,
        "best_trial": best[0] if best else None,
        "best_value": best[1] if best else None,
        "best_settings": best[2] if best else None,
        "default_value": study.first_value(),
        "importances": importances,
        "preset": str(preset) if preset else None,
    }


def _line(told: "Told") -> str:
    value = f"{told.value:g}" if told.value is not None else told.why
    shown = ", ".join(
        f"{key}={setting:.4g}" if isinstance(setting, float) else f"{key}={setting}"
        for key, setting in told.settings.items()
    )
    return (
        f"trial {told.trial} {told.word} {told.rung}: {value}  {shown}"
        if told.word == "rung"
        else f"trial {told.trial} {told.word}: {value}  {shown}"
    )


def _sayer(quiet: bool) -> Any:
    import functools

    return functools.partial(typer.echo, err=quiet)
