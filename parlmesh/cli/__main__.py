"""The `parlmesh` command: mounts the subcommands and turns errors into one sentence and an exit code."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from parlmesh.cli.applications import job, mapek, mesh, orchestration, placement
from parlmesh.cli.applications.play import play, usi
from parlmesh.cli.applications.tune import tune
from parlmesh.cli.commands import actors, bench, certs, deploy, federation, models, ray, store, tasks, train
from parlmesh.cli.commands.dashboard import dashboard
from parlmesh.cli.commands.doctor import doctor
from parlmesh.cli.commands.evaluate import evaluate
from parlmesh.cli.commands.logs import logs
from parlmesh.cli.commands.status import status
from parlmesh.cli.commands.top import top
from parlmesh.cli.commands.up import up
from parlmesh.cli.examples import give_examples
from parlmesh.errors import FleetError
from parlmesh.exit_codes import EXIT_CONFIGURATION, exit_code
from parlmesh.grpc_engine import choose_engine
from parlmesh.harmless_text import visible_lines
from parlmesh.optional_packages import missing_extra

EXIT_BROKEN_PIPE = 141
"""The exit code a shell reports for a program that SIGPIPE ended."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train policies and run tasks on a fleet of mesh nodes.",
)
app.command(short_help="Start a fleet on this machine and train.")(up)
app.command(short_help="Show the runs, queue and actors of a running fleet.")(status)
app.command(short_help="Show a running fleet in a live table.")(top)
app.command(short_help="Serve the web page of a running fleet.")(dashboard)
app.command(short_help="Show the logs of an actor, a run or a task.")(logs)
app.command(short_help="Run whole episodes with a model and print their returns.")(evaluate)
app.command(short_help="Check what could keep a fleet from running here.")(doctor)
app.command(short_help="Search for good settings on a fleet.")(tune)
app.command(short_help="Play a game in the terminal against a model.")(play)
app.command(short_help="Act as a shogi engine for any USI program.")(usi)
app.add_typer(train.app, name="train")
app.add_typer(models.app, name="models")
app.add_typer(tasks.app, name="tasks")
app.add_typer(job.app, name="job")
app.add_typer(orchestration.app, name="orchestration")
app.add_typer(actors.app, name="actors")
app.add_typer(federation.app, name="federation")
app.add_typer(placement.app, name="placement")
app.add_typer(mapek.app, name="mapek")
app.add_typer(mesh.app, name="mesh")
app.add_typer(bench.app, name="bench")
app.add_typer(certs.app, name="certs")
app.add_typer(store.app, name="store")
app.add_typer(deploy.app, name="deploy")
app.add_typer(ray.app, name="ray")
give_examples(app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"parlmesh {version('parlmesh')}")
        except PackageNotFoundError:
            typer.echo("parlmesh, not installed")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", envvar="PARLMESH_CA", help="certificate of the authority (PEM)")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", envvar="PARLMESH_CERTIFICATE", help="your certificate (PEM)")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", envvar="PARLMESH_KEY", help="your key (PEM)")] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", envvar="PARLMESH_TOKEN_FILE", help="file with the token")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Options that all commands share."""
    given = {"ca": ca, "certificate": certificate, "key": key, "token_file": token_file}
    context.obj = {name: path for name, path in given.items() if path is not None}


def main() -> None:
    """Runs the command line."""
    choose_engine()
    try:
        app()
    except FleetError as error:
        _end(error)
    except BaseExceptionGroup as group:
        from parlmesh.rpc.error_statuses import fleet_error_in

        found = fleet_error_in(group)
        if found is None:
            raise
        _end(found)
    except ModuleNotFoundError as error:
        absent = missing_extra(error)
        if not absent:
            raise
        sys.stderr.write(f"parlmesh: {absent}\n")
        sys.exit(EXIT_CONFIGURATION)
    except BrokenPipeError:
        # The reader has ended; the interpreter must not fail when it flushes the rest of stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_BROKEN_PIPE)
    except OSError as error:
        if error.filename is None and error.strerror is None:
            raise
        where = f"{error.filename}: " if error.filename is not None else ""
        sys.stderr.write(f"parlmesh: {where}{error.strerror}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _end(error: FleetError) -> None:
    sys.stderr.write(f"parlmesh: {visible_lines(error.message)}\n")
    sys.exit(exit_code(error))


if __name__ == "__main__":
    main()
