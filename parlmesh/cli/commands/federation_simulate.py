"""`parlmesh federation simulate`: a fleet on this machine whose actors simulate many nodes."""

import asyncio
import math
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parlmesh.cli.commands.federation import fetch_rounds
from parlmesh.cli.connection import CALL_SECONDS, federations_at
from parlmesh.cli.screen.federation_chart import draw_rounds
from parlmesh.cli.screen.federation_view import print_rounds, sentence
from parlmesh.cli.screen.live_table import console as new_console
from parlmesh.cli.screen.output_tables import print_json
from parlmesh.cli.up_session import GRACE_SECONDS, Interrupts
from parlmesh.errors import FleetError
from parlmesh.local.fleet_processes import UpFleet
from parlmesh.local.process_configs import PortsConfig, RunPaths, UpConfig
from parlmesh.processes import Supervisor
from parlmesh.rpc.task_group import first_of
from parlmesh.security import SecurityConfig
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.wire import struct_to_proto

_POLL_SECONDS = 0.2
_SHOWN_ROUNDS = 20
_MOST_ROUNDS = 1_000
# Longest wait for the processes before the first round.
_CONNECT_SECONDS = 300.0


class Interrupted(Exception):
    """The user pressed Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """The settings of a simulation."""

    nodes: int
    processes: int
    configuration: dict[str, Any]
    installed: dict[str, str]
    folder: Path | None
    chart: Path | None
    as_json: bool = False


async def simulate_nodes(simulation: Simulation) -> int:
    """Runs the simulation and prints the result; returns exit code 0 when all rounds were done."""
    console = new_console(stderr=simulation.as_json)
    try:
        federation, rounds = await run_simulation(simulation, say=console.print)
    except Interrupted:
        return 130
    if simulation.as_json:
        print_json([federation])
    else:
        print_rounds(rounds[:_SHOWN_ROUNDS])
    console.print(sentence(federation))
    console.print(cost(simulation.nodes, rounds))
    if simulation.chart is not None:
        draw_rounds(rounds, simulation.chart, f"{simulation.configuration['task']}, {simulation.nodes} nodes")
        console.print(f"drawn to {simulation.chart}")
    return 0 if federation.state == pb.FEDERATION_STATE_FINISHED else 1


async def run_simulation(simulation: Simulation, say: Callable[[str], None]) -> "tuple[pb.Federation, list[pb.Round]]":
    """Runs a fleet from start to end; returns the final federation and its rounds, newest first."""
    with ExitStack() as stack:
        folder = simulation.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="parlmesh-")))
        async with Supervisor(note=say, grace_seconds=GRACE_SECONDS) as supervisor:
            fleet = UpFleet(_fleet_config(simulation), RunPaths(folder), supervisor)
            with Interrupts(supervisor.kill) as interrupts:
                found = await first_of(_rounds(simulation, fleet, say), _interrupted(interrupts))
                await fleet.stop()
    return found


async def _rounds(
    simulation: Simulation, fleet: UpFleet, say: Callable[[str], None]
) -> "tuple[pb.Federation, list[pb.Round]]":
    await fleet.start()
    request = pb.StartFederationRequest(
        federation_id="simulation",
        configuration=struct_to_proto(_settings(simulation)),
    )
    async with federations_at(fleet.learner, SecurityConfig()) as stub:
        started = await _started(stub, request)
        say(sentence(started))
        federation = started
        while federation.state == pb.FEDERATION_STATE_RUNNING:
            await asyncio.sleep(_POLL_SECONDS)
            answer = await stub.GetFederation(pb.GetFederationRequest(), timeout=CALL_SECONDS)
            federation = answer.federation
        return federation, await fetch_rounds(stub, "", _MOST_ROUNDS)


async def _started(stub: Any, request: pb.StartFederationRequest) -> pb.Federation:
    """Asks the learner, which has only just started, until it answers."""
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            answer = await stub.StartFederation(request, timeout=6 * CALL_SECONDS, wait_for_ready=True)
            return answer.federation  # type: ignore[no-any-return]
        except FleetError:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(_POLL_SECONDS)


def cost(nodes: int, rounds: "list[pb.Round]") -> str:
    """The time per round, and per round and node."""
    done = [each for each in rounds if each.state == pb.ROUND_STATE_AGGREGATED]
    if len(done) < 2:
        return f"{nodes} nodes, {len(done)} rounds"
    begin = min(each.start_time.ToNanoseconds() for each in done) / 1e9
    end = max(each.start_time.ToNanoseconds() / 1e9 + each.seconds for each in done)
    middle = sorted(each.seconds for each in done)[len(done) // 2]
    return (
        f"{nodes} nodes, {len(done)} rounds in {end - begin:.1f} s;"
        f" a round {middle:.3f} s, {1e3 * middle / nodes:.2f} ms per node"
    )


def _settings(simulation: Simulation) -> dict[str, Any]:
    """Virtual nodes may vote, because this command started all of their hosts."""
    virtual = {"virtual_nodes": _nodes_per_process(simulation), "virtual_voters": True}
    selection = {**virtual, **simulation.configuration.get("selection", {})}
    return {"wait_seconds": _CONNECT_SECONDS, **simulation.configuration, "selection": selection}


def _nodes_per_process(simulation: Simulation) -> int:
    return math.ceil(simulation.nodes / simulation.processes)


def _fleet_config(simulation: Simulation) -> UpConfig:
    return UpConfig(
        actors=simulation.processes,
        ports=PortsConfig(scheduler=0, learner=0, metrics=0),
        learner={"mode": "federation", "federations": {"learning_tasks": simulation.installed}},
        actor={
            "virtual_nodes": _nodes_per_process(simulation),
            "kinds": ["federated_fit", "federated_evaluate", "federated_mask"],
            "learning_tasks": simulation.installed,
        },
    )


async def _interrupted(interrupts: Interrupts) -> "tuple[pb.Federation, list[pb.Round]]":
    await interrupts.first.wait()
    raise Interrupted
