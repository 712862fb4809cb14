"""`parlmesh ray`: runs a fleet inside a Ray cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parlmesh.cli.connection import AsJson, run

if TYPE_CHECKING:
    from parlmesh.raycluster.fleet import RayFleetConfig

app = typer.Typer(no_args_is_help=True, help="Run a fleet inside a Ray cluster.")

Cluster = Annotated[
    str,
    typer.Option(
        "--address", metavar="HOST:PORT", envvar="RAY_ADDRESS", help="the Ray cluster; auto = that of this node"
    ),
]
Name = Annotated[str, typer.Argument(help="the fleet's name", metavar="NAME")]


@app.command()
def up(
    address: Cluster = "auto",
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML file with settings")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="one setting, e.g. actors=8 or training.seed=1; repeatable"),
    ] = None,
    certificates: Annotated[
        Path, typer.Option(metavar="DIR", help="where the fleet's certificates and the operator's token are kept")
    ] = Path("certs-ray"),
    wait: Annotated[bool, typer.Option("--wait", help="wait for the end of the run, then end the fleet")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a scheduler, a learner and actors in a Ray cluster.

    parlmesh ray up --set actors=8 --set training.environment.id=Acrobot-v1 --wait

    Without --wait they keep running after this command; `parlmesh ray down` ends them.
    """
    from parlmesh.cli.screen.output_tables import print_object, say
    from parlmesh.config import load
    from parlmesh.raycluster import fleet

    settings = load(fleet.RayFleetConfig, file=config, overrides=assignments or (), prefix="PARLMESH_RAY")
    with fleet.connected(address) as ray:
        secrets: dict[str, dict[str, bytes]] = {}
        if settings.secure:
            from parlmesh.raycluster.certificates import write_secrets

            secrets = write_secrets(certificates, settings, fleet.node_addresses(ray))
        found = fleet.up(ray, settings, secrets)
        if wait:
            try:
                training = run(_ended(settings, certificates, found["learner"]))
            finally:
                fleet.down(ray, settings.name)
    if wait:
        from parlmesh.cli.commands.train import say_training

        say_training(training, as_json=as_json)
    elif as_json:
        print_object(name=settings.name, **found)
    else:
        trust = f" --ca {certificates / 'ca.crt'} --token-file {certificates / 'operator.token'}"
        say(f"fleet {settings.name}: scheduler {found['scheduler']}, learner {found['learner']}")
        say(f"parlmesh{trust if settings.secure else ''} status --scheduler {found['scheduler']}")


@app.command()
def down(name: Name = "parlmesh", address: Cluster = "auto", as_json: AsJson = False) -> None:
    """End a fleet: the learner writes its checkpoint, then everything stops."""
    from parlmesh.cli.screen.output_tables import print_object, say
    from parlmesh.raycluster import fleet

    with fleet.connected(address) as ray:
        ended = fleet.down(ray, name)
    if as_json:
        print_object(name=name, ended=ended)
    else:
        say(f"fleet {name}: {ended} processes ended")


@app.command()
def status(name: Name = "parlmesh", address: Cluster = "auto", as_json: AsJson = False) -> None:
    """Show where the processes of a fleet are and how often each was started."""
    from parlmesh.cli.screen.output_tables import print_object, print_table
    from parlmesh.raycluster import fleet

    with fleet.connected(address) as ray:
        found = fleet.standings(ray, name)
    if as_json:
        for standing in found:
            print_object(**standing)
        return
    columns = ("name", "node", "address", "pid", "starts", "last_end")
    rows = [[str(standing[column]) for column in columns] for standing in found]
    print_table(columns, rows, nothing=f"no fleet {name} is in this cluster")


async def _ended(settings: "RayFleetConfig", certificates: Path, learner: str) -> Any:
    from parlmesh.cli.commands.train import ended
    from parlmesh.security import SecurityConfig

    security = SecurityConfig()
    if settings.secure:
        security = SecurityConfig(ca=certificates / "ca.crt", token_file=certificates / "operator.token")
    return await ended(learner, security, settings.run_id, 30 * 86_400.0)
