"""Five targets of one table: parallel steps, task throughput, a MAPE-K cycle, a federated round, mesh optimisation.

Each row: one after another, on the fleet, how many times as fast, and whether the work waits (for networks, disks,
other machines) or computes. Waiting work gains with the slots, computing work only with the cores.
One JSON line on stdout.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from parlmesh.client import PARLController, TaskRequest
from parlmesh.federation.learning_task import Part, make_task
from parlmesh.handlers import Result
from parlmesh.plugins import Plugin
from parlmesh.types import Array

BENCH = Path(__file__).resolve().parent
CORES = os.cpu_count() or 1
STEPS, STEP_SECONDS = 1500, 1.0
TASK_SECONDS = 0.01
NODES = 10
TRAINING: dict[str, Any] = {"epochs": 60, "least_samples": 2000, "most_samples": 2001}
WANTED = 4.5


class TrainNode:
    """A node's part of a round. With `seconds`, the node waits that long, as if it had its own processor elsewhere."""

    kind = "train_node"
    runs_in = "thread"

    def __init__(self) -> None:
        self._task = make_task("synthetic", TRAINING, {})

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Any) -> Result:
        if parameters["seconds"]:
            time.sleep(parameters["seconds"])
            return Result(tensors={name: array.copy() for name, array in tensors.items()})
        fitted = self._task.fit(tensors, Part(f"node-{parameters['node']}", int(parameters["node"]), 1, 0))
        return Result(tensors=fitted.tensors)


plugin = Plugin(handlers={TrainNode.kind: TrainNode})


async def parallel_steps() -> dict[str, Any]:
    """1,500 steps of a second each; in the meantime the scheduler is asked how many run at once."""
    async with PARLController() as controller:
        await controller.initialize(100, actor={"slots": 15})
        request = TaskRequest("sleep", {"seconds": STEP_SECONDS})
        started = time.perf_counter()
        for _ in range(3):
            await controller.execute_parallel([request])
        one = (time.perf_counter() - started) / 3
        at_once, over = [0], asyncio.Event()

        async def watch() -> None:
            while not over.is_set():
                at_once.append((await controller.get_statistics()).running_tasks)
                await asyncio.sleep(0.02)

        watcher = asyncio.create_task(watch())
        started = time.perf_counter()
        outcomes = await controller.execute_parallel([request] * STEPS)
        many = time.perf_counter() - started
        over.set()
        await watcher
    assert all(outcome.ok for outcome in outcomes)
    note = f"{max(at_once)} of {STEPS} steps of {STEP_SECONDS:g} s at once; sequential is {STEPS} times one of them"
    figures = {"sequential": one * STEPS, "fleet": many, "at_once": max(at_once)}
    return {**figures, "unit": "s", "work": "waits", "note": note}


async def throughput(tasks: int) -> dict[str, Any]:
    """Tasks of 10 ms: one after another they are a hundred a second at most."""
    async with PARLController() as controller:
        await controller.initialize(100)
        request = TaskRequest("sleep", {"seconds": TASK_SECONDS})
        await controller.execute_parallel([request] * 200)
        started = time.perf_counter()
        for _ in range(100):
            await asyncio.sleep(TASK_SECONDS)
        one = 100 / (time.perf_counter() - started)
        started = time.perf_counter()
        outcomes = await controller.execute_parallel([request] * tasks)
        many = tasks / (time.perf_counter() - started)
    assert all(outcome.ok for outcome in outcomes)
    note = "sequential is a loop in this process, without a fleet"
    return {"sequential": one, "fleet": many, "unit": "tasks/s", "work": "waits", "note": note}


async def federated_round() -> list[dict[str, Any]]:
    """Ten nodes train a classifier and their models are averaged; the same bytes either way."""
    task = make_task("synthetic", TRAINING, {})
    first = task.first(0).tensors

    def joined(models: list[Any]) -> dict[str, Array]:
        return {name: np.mean([model[name] for model in models], axis=0) for name in first}

    for _ in range(2):  # in the first, nodes draw their data
        started = time.perf_counter()
        alone = joined([task.fit(first, Part(f"node-{node}", node, 1, 0)).tensors for node in range(1, NODES + 1)])
        one = time.perf_counter() - started
    async with PARLController() as controller:
        await controller.initialize(
            NODES, processes=min(CORES, NODES), actor={"plugins": [f"{BENCH / 'targets.py'}:plugin"]}
        )

        async def round_of(seconds: float) -> tuple[float, dict[str, Array]]:
            requests = [
                TaskRequest("train_node", {"node": node, "seconds": seconds}, first) for node in range(1, NODES + 1)
            ]
            started = time.perf_counter()
            outcomes = await controller.execute_parallel(requests)
            for outcome in outcomes:
                outcome.unwrap()
            model = joined([outcome.tensors for outcome in outcomes])
            return time.perf_counter() - started, model

        await round_of(0.0)
        shared, together = await round_of(0.0)
        own, _ = await round_of(one / NODES)
    assert all(np.array_equal(alone[name], together[name]) for name in alone)
    return [
        {"sequential": one, "fleet": shared, "unit": "s", "work": "computes",
         "note": f"{NODES} nodes share {CORES} cores here, so {CORES} times at most"},
        {"sequential": one, "fleet": own, "unit": "s", "work": "waits",
         "note": "each node has its own processor elsewhere: its training is waited for"},
    ]  # fmt: skip


def other(name: str, *options: str) -> dict[str, Any] | None:
    """The JSON line of another benchmark; None when it does not exist or failed."""
    if not (BENCH / name).exists():
        return None
    done = subprocess.run([sys.executable, str(BENCH / name), *options], stdout=subprocess.PIPE, text=True, timeout=900)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def rows(quick: bool) -> list[dict[str, Any]]:
    found = [
        {"target": "parallel steps", "wanted": 1500.0, **asyncio.run(parallel_steps())},
        {"target": "task throughput", "wanted": WANTED, **asyncio.run(throughput(2000 if quick else 10_000))},
    ]
    mapek = other("applications/mapek.py", "--quick")
    row: dict[str, Any] = {"target": "MAPE-K cycle", "wanted": WANTED, "unit": "s", "work": "waits"}
    if mapek is not None:
        note = f"{mapek['nodes']} nodes, pipelined; with barriers {mapek['barrier_seconds']:.2f} s"
        row |= {"sequential": mapek["sequential_seconds"], "fleet": mapek["fleet_seconds"], "note": note}
    else:
        row |= {"sequential": None, "fleet": None, "note": "tools/bench/applications/mapek.py gave no figures"}
    found.append(row)
    found += [{"target": "FL round", "wanted": WANTED, **each} for each in asyncio.run(federated_round())]
    mesh = other("applications/mesh.py", *(("--quick",) if quick else ()))
    if mesh is not None:
        n_1 = mesh["failures"]
        what = f"N−1 of {n_1['scenarios']} links, {n_1['nodes']} nodes"
        base = {"target": "mesh optimisation", "wanted": WANTED, "unit": "s", "work": "computes"}
        found += [
            {**base, "sequential": n_1["sequential_seconds"], "fleet": n_1["fleet_seconds"],
             "note": f"{what}; {CORES} cores, so {CORES} times at most"},
            {**base, "sequential": n_1["scipy_anew_seconds"], "fleet": n_1["fleet_seconds"],
             "note": f"{what}; sequential is scipy's all pairs for every failure"},
        ]  # fmt: skip
    for each in found:
        each["ratio"] = ratio(each)
        each["holds"] = each["ratio"] is not None and each["ratio"] >= each["wanted"]
    return found


def ratio(row: dict[str, Any]) -> float | None:
    if row["sequential"] is None:
        return None
    if "at_once" in row:
        return float(row["at_once"])
    times = row["fleet"] / row["sequential"] if row["unit"] == "tasks/s" else row["sequential"] / row["fleet"]
    return round(float(times), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small meshes, fewer tasks")
    parser.add_argument("--peers", choices=("none",), default="none", help="the table has no peers")
    # `make bench` gives every benchmark the same options.
    parser.add_argument("--wait-quiet", type=float, default=0.0, help="not needed: each row compares within itself")
    options = parser.parse_args()
    from parlmesh.grpc_engine import choose_engine

    choose_engine()
    found = rows(options.quick)
    print(f"{'':20}{'sequential':>14}{'fleet':>14}{'times':>9}{'wanted':>9}  {'work':10}", file=sys.stderr)
    for row in found:
        figures = [f"{row[key]:.2f} {row['unit']}" if row[key] is not None else "—" for key in ("sequential", "fleet")]
        times = f"{row['ratio']:.2f}" if row["ratio"] is not None else "—"
        held = "" if row["holds"] else "NOT HELD: "
        print(
            f"{row['target']:20}{figures[0]:>14}{figures[1]:>14}{times:>9}{row['wanted']:>9g}  ",
            end="",
            file=sys.stderr,
        )
        print(f"{row['work']:10}{held}{row['note']}", file=sys.stderr)
    print(json.dumps({"bench": "targets", "machine": platform.platform(), "cores": CORES, "rows": found}))


if __name__ == "__main__":
    main()
