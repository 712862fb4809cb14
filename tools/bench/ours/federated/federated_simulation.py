"""A federation of many virtual nodes over a few actor processes: seconds for all rounds, and per added node."""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from parlmesh.cli.commands.federation_simulate import Simulation, run_simulation


async def measure(nodes: int, rounds: int, processes: int) -> dict[str, Any]:
    configuration = {
        "task": "synthetic",
        "rounds": rounds,
        "selection": {"min_nodes": nodes},
        "evaluation": {"nodes": 100},
    }
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation(nodes, processes, configuration, {}, Path(folder), None)
        started = time.perf_counter()
        federation, found = await run_simulation(simulation, say=lambda _: None)
        total = time.perf_counter() - started
    assert federation.aggregated_rounds == rounds, federation.reason
    begin = min(each.start_time.ToNanoseconds() for each in found) / 1e9
    end = max(each.start_time.ToNanoseconds() / 1e9 + each.seconds for each in found)
    middle = sorted(each.seconds for each in found)[len(found) // 2]
    return {
        "seconds": end - begin,
        "seconds_with_start_and_stop": total,
        "round_seconds": middle,
        "milliseconds_per_node": 1e3 * middle / nodes,
        "nodes": nodes,
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(measure(arguments.nodes, arguments.rounds, arguments.processes))))


if __name__ == "__main__":
    main()
