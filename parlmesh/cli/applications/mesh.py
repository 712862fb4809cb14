"""`parlmesh mesh`: computes routes through a mesh and the effect of failures, and draws a map."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parlmesh.cli.connection import run, security_of

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from parlmesh.client import PARLController
    from parlmesh.mesh.measured_mesh import Mesh
    from parlmesh.mesh.optimizer import WhatIf
    from parlmesh.security import SecurityConfig

app = typer.Typer(no_args_is_help=True, help="Compute mesh routes and failure effects, draw maps.")
PLUGIN = "parlmesh.mesh.plugin:plugin"

Topology = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="GML, GraphML, node-link JSON, NetJSON, a dump of batadv-vis or olsrd, a folder of babeld dumps, "
        "or generated:NODES[:SEED]",
    ),
]
MetricName = Annotated[
    str, typer.Option("--metric", metavar="NAME", help="auto, hops, cost, etx, ett, latency, loss, tq")
]
Place = Annotated[str, typer.Option("--where", metavar="PLACE", help="auto, here or fleet")]
Actors = Annotated[int, typer.Option("--actors", metavar="N", min=1, help="actors of a local fleet")]
Scheduler = Annotated[
    str,
    typer.Option("--scheduler", metavar="HOST:PORT", help="a running fleet whose actors have the mesh plug-in"),
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object; everything else goes to stderr")]
_WORTH_A_FLEET = 2e8
"""Scenarios times pairs of nodes; smaller problems are solved before a local fleet would have started."""


@app.command()
def optimize(
    context: typer.Context,
    topology: Topology,
    metric: MetricName = "auto",
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write the routing tables, one JSON object per line")
    ] = None,
    ip: Annotated[Path | None, typer.Option(metavar="FOLDER", help="write `ip route` lines, one file per node")] = None,
    subnet: Annotated[str, typer.Option(metavar="NET", help="subnet for nodes whose names are not addresses")] = "",
    path: Annotated[tuple[str, str] | None, typer.Option(metavar="FROM TO", help="show one path")] = None,
    where: Place = "auto",
    actors: Actors = 2,
    scheduler: Scheduler = "",
    as_json: AsJson = False,
) -> None:
    """Find the best path between all nodes by the metric; ties always go to the same neighbour."""
    import json

    from parlmesh.cli.screen.mesh_view import progress_bar
    from parlmesh.cli.screen.output_tables import say
    from parlmesh.durable_files import replace_file
    from parlmesh.mesh.ip_routes import ip_routes, own_addresses
    from parlmesh.mesh.optimizer import PARLMeshOptimizer

    mesh = _mesh(topology)

    async def work() -> Any:
        async with _fleet(where == "fleet", scheduler, actors, security_of(context)) as controller:
            with progress_bar("segments") as progress:
                return await PARLMeshOptimizer(controller).optimize_routes_parallel(
                    mesh, metric, where=where, progress=progress
                )

    found = run(work())
    parts = found.parts
    if table is not None:
        with table.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in found.rows())
    if ip is not None:
        addresses = own_addresses(mesh.nodes, subnet)
        ip.mkdir(parents=True, exist_ok=True)
        for number, node in enumerate(mesh.nodes):
            lines = [f"# routes of {node}", *ip_routes(found, node, addresses)]
            replace_file(ip / f"{number:05d}-{_file_name(node)}.sh", ("\n".join(lines) + "\n").encode())
    summary: dict[str, Any] = {
        "mesh": mesh.name,
        "nodes": len(mesh.nodes),
        "links": mesh.cables,
        "metric": found.metric,
        "reachable_pairs": found.reachable_pairs,
        "mean_cost": round(found.total_cost / max(1, found.reachable_pairs), 6),
        "total_cost": found.total_cost,
        "parts": [len(part) for part in parts],
        **found.made,
    }
    if path is not None:
        summary["path"] = found.path(*path)
        summary["cost"] = found.cost(*path)
    if as_json:
        say(json.dumps(summary))
        return
    say(f"{mesh.name}: {len(mesh.nodes)} nodes, {mesh.cables} links, metric {found.metric}")
    say(f"{found.reachable_pairs} pairs of nodes reach each other, at {summary['mean_cost']:g} on average")
    if len(parts) > 1:
        others = "; ".join(", ".join(part[:5]) + (" …" if len(part) > 5 else "") for part in parts[1:4])
        say(f"the mesh is in {len(parts)} parts, of {', '.join(str(len(part)) for part in parts[:8])} nodes: {others}")
    if path is not None:
        say(f"{' → '.join(summary['path'])}, {summary['cost']:g}")
    say(f"computed {'on a fleet' if found.made['where'] == 'fleet' else 'here'} in {found.made['seconds']:.2f} s: "
        f"{found.made['why']}")  # fmt: skip
    for wrong in found.made.get("wrong_answers", ()):
        say(f"discarded a wrong answer:  {wrong}", to_stderr=True)


@app.command()
def whatif(
    context: typer.Context,
    topology: Topology,
    metric: MetricName = "auto",
    depth: Annotated[int, typer.Option(min=1, max=2, help="how many fail at once: 1 is N−1, 2 is N−2")] = 1,
    nodes: Annotated[bool, typer.Option("--nodes", help="let nodes fail instead of links")] = False,
    most: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000_000, help="most scenarios; a larger set is sampled")
    ] = 20_000,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="seed of the sample")] = 0,
    demands: Annotated[
        Path | None, typer.Option(metavar="FILE", help="traffic: CSV or JSON with source, target, volume in Mbit/s")
    ] = None,
    gravity: Annotated[
        float | None, typer.Option(metavar="MBPS", min=0.0, help="traffic between all nodes, in total")
    ] = None,
    capacity: Annotated[
        float | None, typer.Option(metavar="MBPS", min=0.0, help="capacity of links that state none")
    ] = None,
    paths: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="FROM TO", help="find disjoint paths between two nodes instead of failures"),
    ] = None,
    count: Annotated[int, typer.Option("--count", metavar="K", min=1, max=16, help="disjoint paths")] = 3,
    where: Place = "auto",
    actors: Actors = 2,
    scheduler: Scheduler = "",
    as_json: AsJson = False,
) -> None:
    """Show what happens when links or nodes fail: pairs cut off, longer paths, and the most overloaded link."""
    import math

    from parlmesh.cli.screen.mesh_view import print_what_if, progress_bar
    from parlmesh.mesh.optimizer import PARLMeshOptimizer

    mesh = _mesh(topology)
    if paths is not None:
        _disjoint(mesh, metric, paths, count, "nodes" if nodes else "cables", as_json)
        return
    traffic = _traffic(mesh, demands, gravity)

    async def work() -> "WhatIf":
        scenarios = min(most, math.comb(len(mesh.nodes) if nodes else mesh.cables, depth))
        wanted = where == "fleet" or (where == "auto" and scenarios * len(mesh.nodes) ** 2 > _WORTH_A_FLEET)
        async with _fleet(wanted, scheduler, actors, security_of(context)) as controller:
            with progress_bar("scenarios") as progress:
                return await PARLMeshOptimizer(controller).what_if_parallel(
                    mesh,
                    metric,
                    depth=depth,
                    fail="nodes" if nodes else "cables",
                    most=most,
                    seed=seed,
                    demands=traffic,
                    capacity=capacity,
                    where=where,
                    progress=progress,
                )

    print_what_if(run(work()), as_json)


@app.command()
def show(
    topology: Topology,
    picture: Annotated[Path, typer.Argument(metavar="PICTURE", help="a file that ends in .png or .svg")],
    metric: MetricName = "auto",
    health: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="JSON object by node: healthy, degraded, failing or unknown; missing = unknown"
        ),
    ] = None,
    demands: Annotated[Path | None, typer.Option(metavar="FILE", help="traffic, for the colours of links")] = None,
    gravity: Annotated[float | None, typer.Option(metavar="MBPS", min=0.0, help="traffic between all nodes")] = None,
    capacity: Annotated[
        float | None, typer.Option(metavar="MBPS", min=0.0, help="capacity of links that state none")
    ] = None,
    path: Annotated[tuple[str, str] | None, typer.Option(metavar="FROM TO", help="highlight one path")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw a map: nodes coloured by health, links by load, or by cost if no traffic is given."""

    from parlmesh.cli.screen.output_tables import print_object, say
    from parlmesh.mesh.graph import Graph
    from parlmesh.mesh.link_costs import Metric
    from parlmesh.mesh.map_picture import draw_map
    from parlmesh.mesh.path_distances import all_distances
    from parlmesh.mesh.routes import RoutingTable, next_hops
    from parlmesh.mesh.traffic import Neighbours, capacities
    from parlmesh.optional_packages import require

    require("parlmesh mesh show", "charts", "matplotlib")
    mesh = _mesh(topology)
    graph = Graph.of(mesh, Metric(metric))
    traffic = _traffic(mesh, demands, gravity)
    told = _health(health) if health is not None else {}
    used, said, bottleneck = None, "", {}
    if traffic is not None:
        room = capacities(mesh, graph, capacity)
        loads = Neighbours(graph).loads(all_distances(graph), traffic, len(graph.source))
        used = loads.load / room
        link, most = loads.bottleneck(room)
        if link >= 0:
            ends = f"{mesh.nodes[graph.source[link]]} → {mesh.nodes[graph.target[link]]}"
            said = f"; the bottleneck is {ends}, at {most:.0%} of its capacity"
            bottleneck = {"link": ends, "used": float(most)}
    along = None
    if path is not None:
        distance = all_distances(graph)
        table = RoutingTable(mesh.nodes, metric, distance, next_hops(graph, distance))
        along = [mesh.number(node) for node in table.path(*path)]
    draw_map(picture, mesh, graph, health=told, utilisation=used, highlight=along)
    if as_json:
        print_object(picture=picture, nodes=len(mesh.nodes), links=mesh.cables, bottleneck=bottleneck or None)
    else:
        say(f"{picture}: {len(mesh.nodes)} nodes, {mesh.cables} links{said}")


def _mesh(topology: str) -> "Mesh":
    from parlmesh.errors import InvalidInput
    from parlmesh.mesh.formats import read_mesh
    from parlmesh.mesh.random_mesh import generated_mesh
    from parlmesh.optional_packages import require

    require("parlmesh mesh", "mesh", "networkx", "scipy")
    word, _, rest = topology.partition(":")
    if word != "generated" or Path(topology).exists():
        return read_mesh(Path(topology))
    numbers = rest.split(":")
    if len(numbers) > 2 or not all(number.isascii() and number.isdigit() for number in numbers):
        raise InvalidInput(f"{topology!r} must be generated:NODES or generated:NODES:SEED")
    return generated_mesh(*map(int, numbers))


def _health(file: Path) -> "dict[str, str]":
    """Reads the health of nodes, by name."""
    import json

    from parlmesh.errors import InvalidInput
    from parlmesh.mesh.formats import read_text

    try:
        return {str(node): str(word) for node, word in json.loads(read_text(file)).items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"{file} must be a JSON object of words by node: {error}") from None


def _traffic(mesh: "Mesh", demands: Path | None, gravity: float | None) -> Any:
    from parlmesh.errors import InvalidInput
    from parlmesh.mesh.traffic import gravity_demands, read_demands

    if demands is not None and gravity is not None:
        raise InvalidInput("demands and gravity are both given; give one of them")
    if demands is not None:
        return read_demands(mesh, demands)
    return None if gravity is None else gravity_demands(mesh, gravity)


def _fleet(
    wanted: bool, scheduler: str, actors: int, security: "SecurityConfig"
) -> "AbstractAsyncContextManager[PARLController | None]":
    from contextlib import asynccontextmanager, nullcontext

    if not wanted and not scheduler:
        return nullcontext(None)

    @asynccontextmanager
    async def opened() -> Any:
        from parlmesh.client import PARLController

        async with PARLController(scheduler, security=security) as controller:
            if not scheduler:
                await controller.initialize(actors, processes=actors, actor={"plugins": [PLUGIN]})
            yield controller

    return opened()


def _disjoint(mesh: "Mesh", metric: str, pair: tuple[str, str], count: int, apart: str, as_json: bool) -> None:
    import json

    from parlmesh.cli.screen.output_tables import say
    from parlmesh.mesh.link_costs import UNIT
    from parlmesh.mesh.optimizer import PARLMeshOptimizer

    (paths,), made = run(
        PARLMeshOptimizer().disjoint_paths_parallel(mesh, [pair], count, metric, apart=apart, where="here")
    )
    rows: list[dict[str, Any]] = [
        {"nodes": [mesh.nodes[node] for node in path.nodes], "cost": path.cost / UNIT} for path in paths
    ]
    if as_json:
        say(json.dumps({"mesh": mesh.name, "apart": apart, "paths": rows, **made}))
        return
    what = "node" if apart == "nodes" else "link"
    say(f"{len(rows)} paths from {pair[0]} to {pair[1]} that share no {what}" + ("" if rows else ": there is no path"))
    for row in rows:
        say(f"  {row['cost']:g}: {' → '.join(row['nodes'])}")


def _file_name(node: str) -> str:
    return "".join(each if each.isalnum() or each in "-." else "_" for each in node)[:60]


@app.command("try")
def try_(
    fault: Annotated[
        list[str] | None, typer.Option("--fault", metavar="KIND", help="loss, latency, dead, disk, cpu; repeatable")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build hosts in network namespaces of this machine with an actor on each, inject a fault and let a loop heal it.

    Needs root. Exit code 1 when a fault was not healed within two cycles.
    """
    import json
    from dataclasses import asdict
    from functools import partial

    from parlmesh.cli.applications.lab import CYCLES, FAULTS, FleetInLab
    from parlmesh.cli.screen.output_tables import say
    from parlmesh.errors import InvalidInput
    from parlmesh.optional_packages import require

    require("parlmesh mesh try", "mapek", "psutil")
    wanted = fault or ["loss"]
    for kind in wanted:
        if kind not in FAULTS:
            raise InvalidInput(f"fault must be one of {', '.join(FAULTS)}, got {kind!r}")
    tell = partial(say, to_stderr=as_json)

    async def work() -> list[Any]:
        async with FleetInLab.opened(tell) as fleet:
            return [await fleet.heal(kind, tell) for kind in wanted]

    found = run(work())
    if as_json:
        say(json.dumps([asdict(each) for each in found]))
    if not all(0 < each.cycles <= CYCLES for each in found):
        raise typer.Exit(1)
