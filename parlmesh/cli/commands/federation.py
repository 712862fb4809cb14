"""`parlmesh federation`: starts, follows and stops federated rounds, or simulates many nodes on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parlmesh.cli.connection import (
    CALL_SECONDS,
    LEARNER_DEFAULT,
    AsJson,
    LearnerAddress,
    all_pages,
    ask,
    federations_at,
    run,
)

if TYPE_CHECKING:
    from parlmesh.v1.federation_service_pb2 import Federation, Round

# The first model may be large, or its learning task slow to import.
_START_SECONDS = 6 * CALL_SECONDS

app = typer.Typer(
    no_args_is_help=True, help="Run federated rounds. Data stays on the nodes; only updates are aggregated."
)

FederationId = Annotated[
    str, typer.Option("--id", metavar="ID", help="the federation; empty = the most recently started one")
]
ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="YAML file with the settings")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="one setting, e.g. rule.name=median; repeatable")
]
Chart = Annotated[Path | None, typer.Option("--chart", metavar="FILE", help="draw accuracy and participation (PNG)")]


@app.command()
def start(
    context: typer.Context,
    config: ConfigFile = None,
    assignments: Assignments = None,
    federation_id: FederationId = "",
    learner: LearnerAddress = LEARNER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Start rounds on the connected nodes and return immediately."""
    values = _values(config, assignments)

    from parlmesh.v1.federation_service_pb2 import StartFederationRequest
    from parlmesh.wire import struct_to_proto

    request = StartFederationRequest(federation_id=federation_id, configuration=struct_to_proto(values))
    answer = ask(federations_at, learner, context, lambda stub: stub.StartFederation(request, timeout=_START_SECONDS))
    _say(answer.federation, as_json=as_json)


@app.command()
def status(
    context: typer.Context,
    federation_id: FederationId = "",
    learner: LearnerAddress = LEARNER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the state of a federation."""

    from parlmesh.v1.federation_service_pb2 import GetFederationRequest

    request = GetFederationRequest(federation_id=federation_id)
    answer = ask(federations_at, learner, context, lambda stub: stub.GetFederation(request, timeout=CALL_SECONDS))
    _say(answer.federation, as_json=as_json)


@app.command("list")
def list_federations(
    context: typer.Context, learner: LearnerAddress = LEARNER_DEFAULT, as_json: AsJson = False
) -> None:
    """List the learner's federations, newest first."""
    from parlmesh.cli.screen.federation_view import print_federations
    from parlmesh.cli.screen.output_tables import print_json
    from parlmesh.v1.federation_service_pb2 import ListFederationsRequest

    request = ListFederationsRequest()
    found = ask(federations_at, learner, context, lambda stub: all_pages(stub.ListFederations, request, "federations"))
    if as_json:
        print_json(found)
    else:
        print_federations(found)


@app.command()
def rounds(
    context: typer.Context,
    federation_id: FederationId = "",
    number: Annotated[int, typer.Option("--number", "-n", metavar="N", min=1, max=1000, help="newest rounds")] = 20,
    nodes: Annotated[bool, typer.Option("--nodes", help="show every node's update")] = False,
    chart: Chart = None,
    learner: LearnerAddress = LEARNER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List past rounds, newest first."""
    from parlmesh.cli.screen.federation_view import print_rounds, print_updates
    from parlmesh.cli.screen.output_tables import print_json, say

    found = ask(federations_at, learner, context, lambda stub: fetch_rounds(stub, federation_id, number))
    if chart is not None:
        from parlmesh.cli.screen.federation_chart import draw_rounds

        draw_rounds(found, chart, federation_id or "federation")
        say(f"drawn to {chart}")
    if as_json:
        print_json(found)
    elif nodes:
        print_updates(found)
    else:
        print_rounds(found)


@app.command()
def stop(
    context: typer.Context,
    federation_id: FederationId = "",
    learner: LearnerAddress = LEARNER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """End a federation after the current round."""

    from parlmesh.v1.federation_service_pb2 import StopFederationRequest

    request = StopFederationRequest(federation_id=federation_id)
    answer = ask(federations_at, learner, context, lambda stub: stub.StopFederation(request, timeout=CALL_SECONDS))
    _say(answer.federation, as_json=as_json)


@app.command()
def simulate(
    nodes: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="virtual nodes")] = 10,
    rounds_: Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="rounds")] = 20,
    task: Annotated[
        str, typer.Option(metavar="NAME", help="learning task; digits up to 100 nodes, synthetic above")
    ] = "",
    config: ConfigFile = None,
    assignments: Assignments = None,
    install: Annotated[
        list[str] | None,
        typer.Option("--install", metavar="NAME=MODULE:ATTRIBUTE", help="install your own learning task; repeatable"),
    ] = None,
    processes: Annotated[int, typer.Option(metavar="N", min=1, max=64, help="actor processes")] = 2,
    folder: Annotated[Path | None, typer.Option("--dir", metavar="DIR", help="folder for all output")] = None,
    chart: Chart = None,
    as_json: AsJson = False,
) -> None:
    """Run a federation of many virtual nodes in a few actor processes on this machine, with the code of real nodes."""
    from parlmesh.cli.commands.federation_simulate import Simulation, simulate_nodes

    values = _values(config, assignments)
    values.setdefault("task", task or ("digits" if nodes <= 100 else "synthetic"))
    values.setdefault("rounds", rounds_)
    if values["task"] == "digits":
        values["settings"] = {"nodes": min(nodes, 700), **values.get("settings", {})}
    values["evaluation"] = {"nodes": 100, **values.get("evaluation", {})}
    values["selection"] = {"min_nodes": nodes, **values.get("selection", {})}
    simulation = Simulation(nodes, min(processes, nodes), values, _installed(install), folder, chart, as_json)
    raise typer.Exit(run(simulate_nodes(simulation)))


async def fetch_rounds(stub: Any, federation_id: str, number: int) -> "list[Round]":
    """The newest rounds, page by page; pages are small because a round of many nodes is large."""
    from parlmesh.v1.federation_service_pb2 import ListRoundsRequest

    found: list[Round] = []
    token = ""
    while len(found) < number:
        size = min(number - len(found), 10)
        request = ListRoundsRequest(federation_id=federation_id, page_size=size, page_token=token)
        answer = await stub.ListRounds(request, timeout=CALL_SECONDS)
        found.extend(answer.rounds)
        token = answer.next_page_token
        if not token:
            break
    return found


def _values(file: Path | None, assignments: list[str] | None) -> dict[str, Any]:
    """The settings as a dictionary, checked here so that a mistake is found without a learner."""
    import yaml

    from parlmesh.config import load
    from parlmesh.federation.config import FederationConfig

    config = load(
        FederationConfig, file=file, overrides=assignments or (), environment={}, prefix="PARLMESH_FEDERATION"
    )
    values: dict[str, Any] = yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    return values


def _installed(given: list[str] | None) -> dict[str, str]:
    pairs = [each.partition("=") for each in given or ()]
    return {name: source for name, _, source in pairs}


def _say(federation: "Federation", *, as_json: bool) -> None:
    from parlmesh.cli.screen.federation_view import sentence
    from parlmesh.cli.screen.output_tables import print_json, say

    if as_json:
        print_json([federation])
    else:
        say(sentence(federation))
