"""A MAPE-K cycle one node at a time, with barriers and pipelined; detectors by NAB's score; planners; SWIM's managers.

Phases wait 50, 100, 100 and 50 ms and compute nothing. One JSON line on stdout.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from parlmesh.plugins import Plugin

THIS = Path(__file__).resolve()
SECONDS = {"monitor": 0.05, "analyse": 0.1, "plan": 0.1, "execute": 0.05}
SLOW = 8
"""With skewed nodes, a different tenth of the nodes takes this many times as long in each phase."""


class Wait:
    """One phase that waits; every node is sick, so that every node passes through all four."""

    runs_in = "loop"

    def __init__(self, phase: str, skewed: bool) -> None:
        self.kind = f"{'skewed' if skewed else 'even'}_{phase}"
        self._phase, self._skewed = phase, skewed

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Any) -> dict[str, Any]:
        seconds = SECONDS[self._phase]
        if self._skewed and sum(parameters["node"].encode()) % 10 == 2 * list(SECONDS).index(self._phase):
            seconds *= SLOW
        await asyncio.sleep(seconds)
        if self._phase == "monitor":
            return {"metrics": {"cpu_percent": 99.0}}
        if self._phase == "analyse":
            why = "it is always so"
            return {"symptoms": [{"name": "cpu_percent", "metric": "cpu_percent", "value": 99.0, "limit": 80.0,
                                  "severity": "warning", "why": why}]}  # fmt: skip
        if self._phase == "plan":
            return {"action": parameters["candidates"][0]["action"], "reason": "the only one"}
        return {"done": True, "detail": "waited"}


plugin = Plugin(
    handlers={each.kind: each for skewed in (False, True) for phase in SECONDS for each in [Wait(phase, skewed)]}
)


async def cycles(nodes: int, repeats: int, *, sequential: bool) -> dict[str, Any]:
    from parlmesh.client import PARLController
    from parlmesh.mapek.config import MapekConfig
    from parlmesh.mapek.knowledge import Knowledge
    from parlmesh.mapek.loop import MapekLoop

    found: dict[str, Any] = {}
    async with PARLController() as controller:
        await controller.initialize(nodes, actor={"plugins": [f"{THIS}:plugin"], "virtual_nodes": 1, "slots": 4})
        with tempfile.TemporaryDirectory() as folder:
            for shape in ("even", "skewed"):
                config = MapekConfig.model_validate(
                    {
                        "kinds": {phase: f"{shape}_{phase}" for phase in SECONDS},
                        "rules": [{"symptom": "cpu_percent", "actions": ["wait"], "cooldown_seconds": 0}],
                        "actions": {"wait": {"kind": "dry_run", "disruptive": False}},
                    }
                )
                for order in ("pipelined", "barriers", *(("sequential",) if sequential and shape == "even" else ())):
                    times = []
                    for number in range(1 if order == "sequential" else repeats):
                        with Knowledge(Path(folder) / f"{shape}-{order}-{number}.sqlite") as knowledge:
                            loop = MapekLoop(controller, config, knowledge)
                            report = await loop.cycle(order)
                        assert len(report.actions) == nodes, f"{len(report.actions)} of {nodes} nodes were acted on"
                        times.append(report.seconds)
                    found[f"{shape}_{order}"] = sorted(times)[len(times) // 2]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, no detectors")
    # `make bench` gives every benchmark the same options.
    parser.add_argument("--peers", choices=("none",), default="none", help="this benchmark has no peers")
    parser.add_argument("--wait-quiet", type=float, default=0.0, help="not needed: all that is compared runs in turn")
    parser.add_argument("--nodes", type=int, default=50)
    data = Path(os.environ.get("PARLMESH_DATA", "data"))
    parser.add_argument(
        "--nab", type=Path, default=data / "nab", help="folder of NAB series (default: $PARLMESH_DATA/nab)"
    )
    parser.add_argument("--trace", type=Path, help="one of SWIM's own traces (*.delta) for its managers, besides ours")
    arguments = parser.parse_args()
    from parlmesh.grpc_engine import choose_engine

    choose_engine()
    times = asyncio.run(cycles(arguments.nodes, 3 if arguments.quick else 9, sequential=True))
    sequential, barrier, fleet = (times[f"even_{order}"] for order in ("sequential", "barriers", "pipelined"))
    result: dict[str, Any] = {
        "bench": "mapek",
        "nodes": arguments.nodes,
        "cores": os.cpu_count(),
        "work": "waits",
        "sequential_seconds": sequential,
        "barrier_seconds": barrier,
        "fleet_seconds": fleet,
        "times_faster": sequential / fleet,
        "skewed_barrier_seconds": times["skewed_barriers"],
        "skewed_fleet_seconds": times["skewed_pipelined"],
    }
    _say(f"{arguments.nodes} nodes, every phase waits, {os.cpu_count()} cores")
    _say(f"  one node at a time {sequential:.2f} s, with barriers {barrier:.2f} s, pipelined {fleet:.2f} s: "
         f"{sequential / fleet:.1f} times as fast")  # fmt: skip
    _say(f"  one slow node in ten in each phase: with barriers {times['skewed_barriers']:.2f} s, "
         f"pipelined {times['skewed_pipelined']:.2f} s")  # fmt: skip
    result |= planners(arguments.trace)
    if not arguments.quick:
        if arguments.nab.is_dir():
            result["detectors"] = detectors(arguments.nab)
        else:
            _say(f"detectors are not scored: there is no folder {arguments.nab}; PARLMESH_DATA names another")
    print(json.dumps(result))


def planners(trace: Path | None) -> dict[str, Any]:
    from parlmesh.mapek.simulation.incidents import compare
    from parlmesh.mapek.simulation.swim import MANAGERS, day, total_utility, traced
    from parlmesh.mapek.simulation.swim_planner import LearnedManager, taught

    rows = {"by_label": compare((0, 1, 2)), "by_cause": compare((0, 1, 2), by_cause=True)}
    for kind, each in rows.items():
        for row in each:
            _say(f"  200 incidents {kind}, seed {row['seed']:.0f}: rules {row['rules_seconds']:.1f} s to recovery, "
                 f"learned {row['shorter']:.0%}, trained policy {row['policy_shorter']:.0%} shorter")  # fmt: skip
    loads = {"generated": [day(seed) for seed in range(5)]}
    if trace is not None:
        loads[trace.name] = [traced(trace)]
    utilities: dict[str, dict[float, dict[str, float]]] = {name: {} for name in loads}
    for boot in (0.0, 60.0, 120.0, 180.0, 240.0):
        known = taught(boot)
        for name, days in loads.items():
            found = {
                manager: mean([total_utility(manage, load, boot, seed) for seed, load in enumerate(days)])
                for manager, manage in MANAGERS.items()
            }
            learned = [LearnedManager(seed, dict(known)) for seed in range(len(days))]
            found["learned"] = mean([total_utility(learned[seed], days[seed], boot, seed) for seed in range(len(days))])
            utilities[name][boot] = found
    for name, by_boot in utilities.items():
        for boot, found in by_boot.items():
            told = ", ".join(f"{manager} {value:.0f}" for manager, value in found.items())
            _say(f"  SWIM, load {name}, {boot:.0f} s to boot: {told}")
    return {"incidents": rows, "swim_utility": utilities}


def detectors(folder: Path) -> list[dict[str, Any]]:
    from parlmesh.mapek.detection.nab_files import read_files, score_table

    began = time.perf_counter()
    rows = score_table(read_files(folder))
    _say(f"NAB's standard score, thresholds of each file from the others ({time.perf_counter() - began:.0f} s)")
    for row in rows:
        _say(f"  {row['detector']:18} {row['score']:6.1f}   recall {row['recall']:.2f}   "
             f"{row['false_alarms_per_day']:.2f} false alarms a day  {row['microseconds']:.0f} µs a point")  # fmt: skip
    return rows


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
