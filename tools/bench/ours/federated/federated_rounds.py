"""Seconds of a steady federated round: a scheduler, a learner and one actor process per node, on the loopback."""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from parlmesh.cli.commands.federation import fetch_rounds
from parlmesh.cli.connection import federations_at
from parlmesh.local.fleet_processes import UpFleet
from parlmesh.local.process_configs import PortsConfig, RunPaths, UpConfig
from parlmesh.processes import Supervisor
from parlmesh.security import SecurityConfig
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.wire import struct_to_proto

LONGEST_SECONDS = 240.0


async def measure(parameters: int, nodes: int, rounds: int, secure: bool, noisy: bool) -> dict[str, Any]:
    config = UpConfig(
        actors=nodes,
        ports=PortsConfig(scheduler=0, learner=0, metrics=0),
        learner={"mode": "federation"},
        actor={"virtual_nodes": 1, "kinds": ["federated_fit", "federated_evaluate", "federated_mask"]},
    )
    configuration: dict[str, Any] = {
        "task": "drift",
        "settings": {"parameters": parameters},
        "rounds": rounds,
        "quorum": nodes,
        "selection": {"min_nodes": nodes, "virtual_nodes": 1},
        "evaluation": {"interval_rounds": 0},
    }
    if secure:
        configuration |= {"secure": {"enabled": True}, "gate": {"max_samples": 1000}}
    if noisy:
        configuration |= {"secure": {"enabled": True}, "privacy": {"mode": "distributed"}}
    with tempfile.TemporaryDirectory() as folder:
        async with Supervisor(note=lambda _: None) as supervisor, asyncio.timeout(LONGEST_SECONDS):
            fleet = UpFleet(config, RunPaths(Path(folder)), supervisor)
            await fleet.start()
            learner = supervisor.children["learner"].pid
            assert learner is not None
            idle = _peak_bytes(learner)
            used: dict[int, dict[str, float]] = {}
            async with federations_at(fleet.learner, SecurityConfig()) as stub:
                request = pb.StartFederationRequest(configuration=struct_to_proto(configuration))
                await stub.StartFederation(request, timeout=60.0, wait_for_ready=True)
                while True:
                    answer = await stub.GetFederation(pb.GetFederationRequest(), timeout=30.0)
                    pids = {name: child.pid for name, child in supervisor.children.items()}
                    used[answer.federation.round] = {name: _cpu_seconds(pid) for name, pid in pids.items() if pid}
                    if answer.federation.state != pb.FEDERATION_STATE_RUNNING:
                        break
                    await asyncio.sleep(0.2)
                found = sorted(await fetch_rounds(stub, "", rounds), key=lambda each: each.number)
            peak = _peak_bytes(learner)
            await fleet.stop()
    assert answer.federation.state == pb.FEDERATION_STATE_FINISHED, answer.federation.reason
    assert all(sum(not update.refusal for update in each.updates) == nodes for each in found)
    begins = [each.start_time.ToNanoseconds() / 1e9 for each in found]
    # From start to start; the first round waits for one-time imports and connections.
    seconds = [after - before for before, after in itertools.pairwise(begins[1:])]
    return {
        "round_seconds": statistics.median(seconds),
        "rounds": [round(value, 4) for value in seconds],
        "coordinator_models": (peak - idle) / (4 * parameters),
        "coordinator_peak_bytes": peak,
        "cpu_milliseconds_per_round": _cpu_per_round({number: each for number, each in used.items() if number > 1}),
    }


def _cpu_per_round(used: dict[int, dict[str, float]]) -> dict[str, float]:
    """Processor time per round of the scheduler, the learner and all actors together."""
    first, last = min(used), max(used)
    found: dict[str, float] = {}
    for name, seconds in used[last].items():
        role = name.partition("-")[0]
        spent = 1e3 * (seconds - used[first][name]) / max(1, last - first)
        found[role] = round(found.get(role, 0.0) + spent, 1)
    return found


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_bytes(pid: int) -> int:
    """The most memory that a process has ever held."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--secure", action="store_true", help="with secure sums")
    parser.add_argument("--noisy", action="store_true", help="with secure sums to which nodes add noise in parts")
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.parameters, given.nodes, given.rounds, given.secure, given.noisy))))


if __name__ == "__main__":
    main()
