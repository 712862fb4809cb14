"""`parlmesh certs`: makes an authority, certificates and tokens for a fleet."""

from pathlib import Path
from typing import Annotated

import typer

from parlmesh.cli.connection import AsJson
from parlmesh.cli.key_value_options import pairs
from parlmesh.cli.screen.output_tables import print_object

app = typer.Typer(no_args_is_help=True, help="Make certificates and tokens for a fleet.")

Name = Annotated[str, typer.Argument(help="letters, digits, '.', '_' and '-'")]
Folder = Annotated[Path, typer.Option(metavar="DIR", help="where the files are kept")]
Days = Annotated[int, typer.Option(help="days until it expires")]
Namespace = Annotated[str, typer.Option(help="restrict it to the tasks of one namespace")]
Force = Annotated[bool, typer.Option("--force", help="replace existing files")]

DEFAULT_FOLDER = Path("certs")


@app.command()
def ca(
    folder: Folder = DEFAULT_FOLDER,
    name: Annotated[str, typer.Option(help="name of the authority")] = "parlmesh-ca",
    days: Days = 3650,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make the authority that signs all certificates of a fleet. Do not copy ca.key to the nodes."""
    _need_extra()
    from parlmesh.security.pem_files import write_authority

    _print_files(*write_authority(folder, name=name, days=days, force=force), as_json=as_json)


@app.command()
def server(
    name: Name,
    dns: Annotated[list[str] | None, typer.Option(metavar="NAME", help="DNS name of the server; repeatable")] = None,
    ip: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="IP address; repeatable")] = None,
    role: Annotated[str, typer.Option(help="also give it this client role; the learner needs operator")] = "",
    folder: Folder = DEFAULT_FOLDER,
    days: Days = 365,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make a server's certificate; without --dns and --ip it is for this machine only."""
    _need_extra()
    from parlmesh.security.identity import role_named
    from parlmesh.security.pem_files import server_hosts, write_certificate

    hosts = server_hosts(dns or (), ip or ())
    also = role_named(role) if role else None
    _print_files(*write_certificate(folder, name, role=also, hosts=hosts, days=days, force=force), as_json=as_json)


@app.command()
def node(
    name: Name,
    role: Annotated[str, typer.Option(help="actor, operator or reader")] = "actor",
    namespace: Namespace = "",
    label: Annotated[list[str] | None, typer.Option(help="attested label of the node, NAME=VALUE; repeatable")] = None,
    folder: Folder = DEFAULT_FOLDER,
    days: Days = 365,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make the certificate that identifies a node or a person."""
    _need_extra()
    from parlmesh.security.identity import role_named
    from parlmesh.security.pem_files import write_certificate

    labels = pairs("--label", label or ())
    held = role_named(role)
    _print_files(
        *write_certificate(
            folder, name, role=held, hosts=(), days=days, force=force, namespace=namespace, labels=labels
        ),
        as_json=as_json,
    )


@app.command()
def token(
    name: Name,
    role: Annotated[str, typer.Option(help="actor, operator or reader")] = "actor",
    namespace: Namespace = "",
    folder: Folder = DEFAULT_FOLDER,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make a token and add its digest to the servers' tokens.yaml."""
    from parlmesh.security.identity import role_named
    from parlmesh.security.tokens import TOKENS_FILE, write_token

    file, line = write_token(folder, name, role_named(role), force=force, namespace=namespace)
    if as_json:
        print_object(token_file=file, tokens_file=folder / TOKENS_FILE)
        return
    typer.echo(f"{file}  (secret: give it only to {name})")
    typer.echo(f"{folder / TOKENS_FILE}  (for security.tokens of the servers)")
    typer.echo(line)


def _need_extra() -> None:
    from parlmesh.security.extra import require_extra

    require_extra()


def _print_files(certificate: Path, key: Path, *, as_json: bool) -> None:
    if as_json:
        print_object(certificate=certificate, key=key)
        return
    typer.echo(f"{certificate}")
    typer.echo(f"{key}  (secret)")


@app.command("list")
def list_certificates(
    folder: Folder = DEFAULT_FOLDER,
    within: Annotated[
        float, typer.Option(metavar="DAYS", min=0, help="exit code 1 if one expires within this time")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """List certificates with the days until they expire; exit code 1 when one has expired.

    parlmesh certs list --within 14
    """
    _need_extra()
    from datetime import UTC, datetime

    from parlmesh.security.renewal import held_certificates

    now = datetime.now(UTC)
    held = held_certificates(folder)
    for each in held:
        left = each.days_left(now)
        if as_json:
            row = {"name": each.name, "role": each.role, "hosts": each.hosts, "expires": each.expires.isoformat()}
            print_object(**row, revoked=each.revoked, sha256=each.fingerprint)
            continue
        state = "revoked" if each.revoked else f"{left:.0f} days" if left > 0 else "over"
        typer.echo(f"{each.name:24} {each.role:10} {each.expires:%Y-%m-%d}  {state}")
    if any(each.days_left(now) <= within and not each.revoked for each in held):
        raise typer.Exit(1)


@app.command()
def renew(
    names: Annotated[list[str] | None, typer.Argument(help="which ones; none = all that expire soon")] = None,
    within: Annotated[
        float, typer.Option(metavar="DAYS", min=0, help="longest remaining time that counts as soon")
    ] = 30.0,
    folder: Folder = DEFAULT_FOLDER,
    days: Days = 365,
    as_json: AsJson = False,
) -> None:
    """Replace keys and certificates with new ones of the same content; services reload them without a restart.

    parlmesh certs renew --within 30
    """
    _need_extra()
    from datetime import UTC, datetime

    from parlmesh.security.renewal import renew as renew_certificates

    for files in renew_certificates(folder, names or (), days=days, within_days=within, now=datetime.now(UTC)):
        _print_files(*files, as_json=as_json)


@app.command()
def revoke(name: Name, folder: Folder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """Add a certificate to revoked.txt, which servers read as security.revoked; its open streams end.

    parlmesh certs revoke node-7
    """
    _need_extra()
    from datetime import UTC, datetime

    from parlmesh.security.renewal import revoke as revoke_certificate

    file = revoke_certificate(folder, name, now=datetime.now(UTC))
    if as_json:
        print_object(revoked_file=file)
    else:
        typer.echo(f"{file}  (for security.revoked of the servers)")
