"""`parlmesh dashboard`: serves the web page of a running fleet."""

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
        str, typer.Option(metavar="ADDRESS", help="address to listen on; other than this machine needs --tokens")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0 = any free port")] = 8700,
    prefix: Annotated[str, typer.Option(metavar="PATH", help="path prefix that a proxy forwards, such as /fleet")] = "",
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="who may log in; same format as the servers' tokens file")
    ] = None,
    page_certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="certificate for https (PEM)")] = None,
    page_key: Annotated[Path | None, typer.Option(metavar="FILE", help="key of the certificate (PEM)")] = None,
    behind_proxy: Annotated[bool, typer.Option("--behind-proxy", help="a proxy in front of it terminates TLS")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="allow no changes to the fleet")] = False,
    logs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="folder of runs whose logs to show, e.g. ./runs")
    ] = None,
    mapek: Annotated[Path | None, typer.Option(metavar="FILE", help="knowledge of a MAPE-K loop to show")] = None,
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="file that keeps the fleet's past numbers")
    ] = None,
) -> None:
    """Serve the web page of a running fleet until Ctrl-C.

    It is a separate process that reads over gRPC, so that viewers never slow the scheduler down.
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
