"""`parlmesh deploy`: writes deployment files with your addresses, images and certificates filled in."""

from pathlib import Path
from typing import Annotated

import typer

from parlmesh.cli.connection import AsJson
from parlmesh.cli.screen.output_tables import print_object

app = typer.Typer(
    no_args_is_help=True,
    help="Write deployment files. They are for containers, Kubernetes, systemd, Slurm and Prometheus.",
)

Kind = Annotated[
    str,
    typer.Argument(help="compose, grafana, helm, kubernetes, prometheus, ray, slurm, systemd or all", metavar="KIND"),
]


@app.command()
def render(
    kind: Kind,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="where to write; each kind gets its own folder")],
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML file with settings")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="one setting; repeatable")
    ] = None,
    certificates: Annotated[
        bool, typer.Option("--certificates", help="also make missing certificates, as `parlmesh certs` does")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="replace existing files, but never a certificate")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the files of one kind, or of all kinds.

    parlmesh deploy render compose --out fleet --set image=registry.example/parlmesh:0.1.0 --certificates

    `parlmesh deploy settings` lists what can be set.
    """
    from parlmesh.config import load
    from parlmesh.deployment.rendered_files import names, write
    from parlmesh.deployment.settings import DeploySettings

    settings = load(DeploySettings, file=config, overrides=assignments or (), prefix="PARLMESH_DEPLOY")
    if certificates and settings.secure:
        from parlmesh.security.extra import require_extra

        require_extra()
    for name in names() if kind == "all" else [kind]:
        for path in write(name, settings, out, certificates=certificates, force=force):
            _say_file(path, as_json=as_json)


@app.command()
def settings(as_json: AsJson = False) -> None:
    """List the settings of a deployment with their defaults."""
    from parlmesh.config.fields import describe, leaves
    from parlmesh.deployment.settings import DeploySettings

    for leaf in leaves(DeploySettings):
        if as_json:
            print_object(setting=leaf.key, kind=describe(leaf.field), default=leaf.default, meaning=leaf.meaning)
            continue
        typer.echo(f"{leaf.key}: {describe(leaf.field)} (default {leaf.default})")
        typer.echo(f"    {leaf.meaning}")


@app.command("protoset")
def write_protoset(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="output file")] = Path("parlmesh.binpb"),
    as_json: AsJson = False,
) -> None:
    """Write the contract to a file for `grpcurl -protoset` and `buf curl --schema`, for use without reflection."""
    from parlmesh.deployment.protoset import protoset

    out.write_bytes(protoset())
    _say_file(out, as_json=as_json)


def _say_file(path: Path, *, as_json: bool) -> None:
    if as_json:
        print_object(file=path)
    else:
        typer.echo(str(path))
