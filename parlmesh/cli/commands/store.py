"""`parlmesh store`: migrates the tables of a scheduler's PostgreSQL store and checks the database's durability."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parlmesh.cli.connection import AsJson
from parlmesh.errors import ConfigError, Unavailable
from parlmesh.harmless_text import visible

if TYPE_CHECKING:
    from parlmesh.postgres.database import Database

app = typer.Typer(no_args_is_help=True, help="Migrate and check the scheduler's PostgreSQL store.")

PASSWORD_VARIABLE = "PARLMESH_SCHEDULER__STORE__PASSWORD"  # noqa: S105 - its name
Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="PARLMESH_SCHEDULER__STORE__URL",
        help="postgresql://user@host:port/name, the scheduler's store.url",
    ),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="PARLMESH_SCHEDULER__STORE__PASSWORD_FILE",
        help=f"file with the password; default: the variable {PASSWORD_VARIABLE}",
    ),
]


@app.command()
def migrate(url: Url, password_file: PasswordFile = None, as_json: AsJson = False) -> None:
    """Create or upgrade the tables. Run it before schedulers of a new release start; a second run changes nothing."""
    from parlmesh.postgres.schema import migrate as renew

    with opened(url, password_file) as database:
        before, after = renew(database)
        if as_json:
            typer.echo(json.dumps({"before": before, "after": after}))
            return
        what = f"tables of version {after}" if before == after else f"tables upgraded from version {before} to {after}"
        typer.echo(f"{visible(str(database.target))}: {what}")


@app.command()
def check(url: Url, password_file: PasswordFile = None, as_json: AsJson = False) -> None:
    """Show which scheduler leads and what a database failover can lose; exit code 1 when it can lose something."""
    from parlmesh.postgres.commit_guarantees import ask

    with opened(url, password_file) as database:
        promises = ask(database)
    advice = promises.advice()
    if as_json:
        typer.echo(json.dumps(asdict(promises) | {"ok": not advice, "advice": advice}))
    else:
        typer.echo(visible(f"{promises.said()}; {advice}" if advice else promises.said()))
    if advice:
        raise typer.Exit(1)


@contextmanager
def opened(url: str, password_file: Path | None) -> "Iterator[Database]":
    """Opens the database; its errors are raised as one sentence."""
    from parlmesh.postgres.connection_settings import Target, check_url
    from parlmesh.postgres.database import Database

    try:
        check_url(url)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    database = Database(Target(url, os.environ.get(PASSWORD_VARIABLE, ""), password_file), name="parlmesh-cli")
    try:
        yield database
    except OSError as error:
        raise Unavailable(str(error)) from None
    finally:
        database.close()
