"""Routes of a mesh: all pairs beside scipy, N−1 failures and disjoint paths in one process and on a fleet.

Results are checked to be equal before they are compared. One JSON line on stdout.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])
# Several threads in every process would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from scipy.sparse.csgraph import dijkstra

from parlmesh.client import PARLController
from parlmesh.mesh import PARLMeshOptimizer
from parlmesh.mesh.failures import Failures, scenarios_of
from parlmesh.mesh.graph import Graph
from parlmesh.mesh.measured_mesh import Mesh
from parlmesh.mesh.path_distances import all_distances
from parlmesh.mesh.random_mesh import generated_mesh
from parlmesh.types import Array

PLUGIN = "parlmesh.mesh.plugin:plugin"
CORES = os.cpu_count() or 1
BRUTE = 20
"""Failures that scipy also computes from scratch; the time for all is extrapolated."""


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found


async def all_pairs(nodes: int, repeats: int, fleet: PARLMeshOptimizer) -> dict[str, Any]:
    """Distances here and by scipy in turns, wall and processor time; then whole tables, here and on the fleet."""
    mesh = generated_mesh(nodes)
    graph = Graph.of(mesh, "etx")
    own = PARLMeshOptimizer()
    taken: dict[str, list[float]] = {}

    def took(name: str, wall: float, processor: float) -> None:
        taken.setdefault(name, []).append(time.perf_counter() - wall)
        taken.setdefault(f"{name}_processor", []).append(time.process_time() - processor)

    for _ in range(repeats):
        now = time.perf_counter(), time.process_time()
        reference = dijkstra(graph.matrix())
        took("scipy", *now)
        now = time.perf_counter(), time.process_time()
        distance, _ = await own.distances(graph)
        took("here", *now)
        assert np.array_equal(distance, reference)
    tables = {
        "here": await own.optimize_routes_parallel(mesh, "etx"),
        "fleet": await fleet.optimize_routes_parallel(mesh, "etx", where="fleet"),
    }
    for made in tables.values():
        assert np.array_equal(made.distance, reference)
        assert np.array_equal(made.next_hop, tables["here"].next_hop)
    seconds = {name: statistics.median(values) for name, values in taken.items()}
    seconds["here_table"] = tables["here"].made["seconds"]
    seconds["fleet_distances"] = tables["fleet"].made["distance_seconds"]
    row: dict[str, Any] = {
        "nodes": nodes,
        "links": mesh.cables,
        "turns": repeats,
        **{f"{name}_seconds": round(value, 4) for name, value in seconds.items()},
    }
    row["here_over_scipy"] = round(seconds["here"] / seconds["scipy"], 3)
    row["here_over_scipy_processor"] = round(seconds["here_processor"] / seconds["scipy_processor"], 3)
    row["table_over_scipy"] = round(seconds["here_table"] / seconds["scipy"], 3)
    row["fleet_over_scipy"] = round(seconds["fleet_distances"] / seconds["scipy"], 3)
    say(f"{nodes:5} nodes, all pairs, medians of {repeats} turns: scipy {seconds['scipy']:.3f} s; distances here ")
    say(f"      {row['here_over_scipy']} of it ({row['here_over_scipy_processor']} by processor time), with next hops")
    say(f"      {row['table_over_scipy']}, by segments on the fleet {row['fleet_over_scipy']}")
    return row


async def failures(nodes: int, fleet: PARLMeshOptimizer) -> dict[str, Any]:
    """Every link of a mesh fails once: from scratch by scipy, in one process, and on the fleet."""
    mesh = generated_mesh(nodes)
    graph = Graph.of(mesh, "etx")
    scenarios, _ = scenarios_of(mesh.cables, 1)
    some = scenarios[:: max(1, len(scenarios) // BRUTE)]
    before = all_distances(graph)
    brute, longer = timed(lambda: [anew(graph, before, int(cable)) for (cable,) in some])
    assert longer == Failures(graph).consequences(some).longer_pairs.tolist()
    brute *= len(scenarios) / len(some)
    here = await PARLMeshOptimizer().what_if_parallel(mesh, "etx", where="here")
    there = await fleet.what_if_parallel(mesh, "etx", where="fleet")
    for name, column in here.consequences.tensors().items():
        assert np.array_equal(getattr(there.consequences, name), column), name
    one, many = here.made["seconds"], there.made["seconds"]
    say(f"{nodes:5} nodes, N−1 of {len(scenarios)} links: scipy anew {brute:.1f} s (from {len(some)} of them),")
    say(f"      one process {one:.2f} s, fleet {many:.2f} s: {one / many:.2f} times on {CORES} cores")
    return {
        "nodes": nodes,
        "scenarios": len(scenarios),
        "scipy_anew_seconds": round(brute, 3),
        "sequential_seconds": one,
        "fleet_seconds": many,
        "speed_up": round(one / many, 3),
        "over_scipy_anew": round(brute / many, 3),
    }


def anew(graph: Graph, before: Array, cable: int) -> int:
    after = all_distances(graph.only(graph.cable != cable))
    return int((np.isfinite(after) & (after > before)).sum())


async def paths(mesh: Mesh, fleet: PARLMeshOptimizer, count: int) -> dict[str, Any]:
    """Three disjoint paths for pairs of nodes."""
    pairs = [(mesh.nodes[0], node) for node in mesh.nodes[1 : count + 1]]
    alone, here = await PARLMeshOptimizer().disjoint_paths_parallel(mesh, pairs, 3, "etx", where="here")
    together, there = await fleet.disjoint_paths_parallel(mesh, pairs, 3, "etx", where="fleet")
    assert alone == together
    speed_up = here["seconds"] / there["seconds"]
    say(f"{len(mesh.nodes):5} nodes, 3 disjoint paths of {len(pairs)} pairs: one process {here['seconds']:.2f} s, "
        f"fleet {there['seconds']:.2f} s: {speed_up:.2f} times on {CORES} cores")  # fmt: skip
    return {"pairs": len(pairs), "sequential_seconds": here["seconds"], "fleet_seconds": there["seconds"],
            "speed_up": round(speed_up, 3)}  # fmt: skip


async def run(quick: bool, workers: int) -> dict[str, Any]:
    async with PARLController() as controller:
        await controller.initialize(workers, processes=workers, actor={"plugins": [PLUGIN]})
        fleet = PARLMeshOptimizer(controller)
        # Actors import their modules with their first tasks, once.
        await fleet.what_if_parallel(generated_mesh(20), "etx", where="fleet")
        sizes = (200, 500) if quick else (200, 500, 1000, 2000, 5000)
        return {
            "all_pairs": [await all_pairs(nodes, 9 if nodes < 2000 else 3, fleet) for nodes in sizes],
            "failures": await failures(150 if quick else 500, fleet),
            "disjoint_paths": await paths(generated_mesh(150 if quick else 500), fleet, 100 if quick else 499),
        }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small meshes")
    parser.add_argument("--workers", type=int, default=CORES, help="processes of the fleet")
    parser.add_argument("--peers", choices=("none",), default="none", help="scipy is always measured")
    # `make bench` gives every benchmark the same options.
    parser.add_argument("--wait-quiet", type=float, default=0.0, help="not needed: all that is compared runs in turn")
    options = parser.parse_args()
    found = asyncio.run(run(options.quick, options.workers))
    about = {
        "bench": "mesh",
        "machine": platform.platform(),
        "cores": CORES,
        "workers": options.workers,
        "work": "computes",
    }
    print(json.dumps({**about, **found}))


if __name__ == "__main__":
    main()
