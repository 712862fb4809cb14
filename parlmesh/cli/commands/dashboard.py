"""`parlmesh dashboard`: the web page of a running fleet."""

from pathlib import Path
from typing import Annotated

import typer

from parlmesh.cli.connection import (
    LEARNER_DEFAULT,
    SCHEDULER_DEFAULT,
    LearnerAddress,
    SchedulerAddress,
    security_of,
)


def dashboard(
    context: typer.Context,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    learner: LearnerAddress = LEARNER_DEFAULT,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="where it listens; beyond this machine with --tokens")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0 = any free one")] = 8700,
    prefix: Annotated[str, typer.Option(metavar="PATH", help="path that a proxy passes on, such as /fleet")] = "",
    tokens: Annotated[Path | None, typer.Option(metavar="FILE", help="who may log in, as servers have it")] = None,
    page_certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="for https (PEM)")] = None,
    page_key: Annotated[Path | None, typer.Option(metavar="FILE", help="its key (PEM)")] = None,
    behind_proxy: Annotated[bool, typer.Option("--behind-proxy", help="a proxy in front of it speaks TLS")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="nobody can change anything")] = False,
    logs: Annotated[Path | None, typer.Option(metavar="DIR", help="runs whose logs are shown, e.g. ./runs")] = None,
    mapek: Annotated[Path | None, typer.Option(metavar="FILE", help="knowledge of a MAPE-K loop to show")] = None,
    history: Annotated[Path | None, typer.Option(metavar="FILE", help="keep the fleet's numbers here")] = None,
) -> None:
    """Serve the web page of a running fleet until Ctrl-C.

    It is a process of its own that reads gRPC, so that looking never slows the scheduler.
    """
    from parlmesh.dashboard.config import DashboardConfig
    from parlmesh.errors import ConfigError
    from parlmesh.optional_packages import require

    require("parlmesh dashboard", "dashboard", "jinja2", "starlette", "uvicorn")
    from pydantic import ValidationError

    from parlmesh.config import LogConfig
    from parlmesh.dashboard.serve import give_way, serve
    from parlmesh.rpc import run_service

    try:
        config = DashboardConfig(
            scheduler=scheduler,
            learner=learner,
            host=host,
            port=port,
            prefix=prefix,
            tokens=tokens,
            certificate=page_certificate,
            key=page_key,
            behind_proxy=behind_proxy,
            read_only=read_only,
            logs=logs,
            mapek=mapek,
            history=history,
            security=security_of(context),
            log=LogConfig(level="warning", format="pretty"),
        )
    except ValidationError as error:
        raise ConfigError(str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, ")) from None

    def tell(url: str) -> None:
        typer.echo(f"the page is at {url}; Ctrl-C ends it")

    give_way()
    raise typer.Exit(run_service(lambda stop: serve(config, stop, tell)))
