"""Learning over slow links: accuracy on the digits per byte and per second, DiLoCo beside FedAvg and central training;
and one policy to many readers of several sites, with a relay for each site and without.

The arithmetic of rounds runs in this process with the code that nodes and learner run; links are simulated. A round
takes as long as the steps of one node, and a model and an update over that node's link; steps have a fixed time.
"""

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Run as a file, this folder would come first and hide packages of the same names.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])

import numpy as np

from parlmesh.federation.aggregators import joint_update, mean
from parlmesh.federation.compression import ErrorFeedback, decode
from parlmesh.federation.learning_task import Part, make_task
from parlmesh.federation.schema import ModelSchema
from parlmesh.federation.server_optimisers import server_optimiser
from parlmesh.federation.update_blocks import MemoryUpdates
from tools.bench.ground.options import Options, parse_options
from tools.bench.ours.dataplane.relays import measure

NODES, BATCH = 10, 32
MARK = 0.95
MEGABITS = (1, 10, 100)
# One gradient step on a node: the time of the digits' network on one core, rounded up.
STEP_SECONDS = 1e-3


@dataclass(frozen=True)
class Arm:
    """One way to train; `steps` is per node and round."""

    name: str
    steps: int
    rounds: int
    local: dict[str, Any]
    server: dict[str, float | str] = field(default_factory=dict)
    encoding: str = "none"
    nodes: int = NODES


ADAMW = {"optimiser": "adamw", "learning_rate": 1e-2, "weight_decay": 1e-2}
OUTER: dict[str, float | str] = {"optimiser": "nesterov", "learning_rate": 0.7, "momentum": 0.9}
ARMS = (
    Arm("central_adamw", 1, 600, ADAMW, nodes=1),
    # FedAvg's step size of 0.1 is the task's own; 1 is the best for single steps.
    Arm("fedavg_every_step_0.1", 1, 600, {"learning_rate": 0.1}),
    Arm("fedavg_every_step_0.3", 1, 600, {"learning_rate": 0.3}),
    Arm("fedavg_every_step", 1, 600, {"learning_rate": 1.0}),
    Arm("fedavg_8_steps", 8, 150, {"learning_rate": 0.3}),
    Arm("diloco_8_steps", 8, 60, ADAMW, OUTER),
    Arm("diloco_30_steps", 30, 40, ADAMW, OUTER),
    Arm("diloco_30_steps_int8", 30, 40, ADAMW, OUTER, "int8"),
    Arm("diloco_100_steps_int8", 100, 30, ADAMW, OUTER, "int8"),
)


@dataclass(frozen=True)
class Moment:
    """After a round: what one node has sent and received, and how good the model is."""

    round: int
    bytes: int
    accuracy: float


def play(arm: Arm, seed: int, partition: str) -> Iterator[Moment]:
    """Rounds of one federation. Central training is one node that has all data, and sends nothing."""
    settings = {"nodes": arm.nodes, "batch": BATCH, "steps": arm.steps, "partition": partition, **arm.local}
    task = make_task("digits", {**settings, "partition_seed": seed}, {})
    tensors = dict(task.first(seed).tensors)
    schema = ModelSchema.of(tensors)
    options = {"optimiser": "fedavg", "learning_rate": 1.0, "momentum": 0.9, **arm.server}
    name = str(options.pop("optimiser"))
    rates = {key: float(value) for key, value in options.items()}
    server = server_optimiser(name, beta2=0.99, tau=1e-3, **rates)
    moments = server.initial(schema.size)
    feedback = [ErrorFeedback(schema.size) for _ in range(arm.nodes)]
    sent = 0
    for number in range(1, arm.rounds + 1):
        parts = [Part(f"n{k:02d}", k, number, seed) for k in range(1, arm.nodes + 1)]
        fitted = [task.fit(tensors, part) for part in parts]
        packed = [
            left.encode(schema.difference(each.tensors, tensors), arm.encoding)
            for left, each in zip(feedback, fitted, strict=True)
        ]
        rows = {part.node_id: decode(data, schema.size, arm.encoding) for part, data in zip(parts, packed, strict=True)}
        joint = joint_update(MemoryUpdates(rows), mean([float(each.samples) for each in fitted]))
        moved = (schema.flatten(tensors) + server.step(joint, moments)).astype(np.float32)
        start = 0
        for spec in schema.joined:
            tensors[spec.name] = moved[start : start + spec.size].reshape(spec.shape)
            start += spec.size
        sent += (4 * schema.size + len(packed[0])) if arm.nodes > 1 else 0
        judged = [task.evaluate(tensors, part) for part in parts]
        right = sum(each.samples * each.metrics["accuracy"] for each in judged) / sum(each.samples for each in judged)
        yield Moment(number, sent, right)


def to_mark(arm: Arm, seed: int, partition: str) -> Moment | None:
    """The first of two rounds in a row that reach the mark; None when none does."""
    before: Moment | None = None
    for moment in play(arm, seed, partition):
        if moment.accuracy >= MARK:
            if before is not None:
                return before
            before = moment
        else:
            before = None
    return None


def seconds(arm: Arm, moment: Moment, megabits: int) -> float:
    return moment.round * arm.steps * STEP_SECONDS + 8.0 * moment.bytes / (megabits * 1e6)


def figures(arm: Arm, seeds: int, partition: str) -> dict[str, Any]:
    found = [to_mark(arm, seed, partition) for seed in range(seeds)]
    reached = [moment for moment in found if moment is not None]
    figure: dict[str, Any] = {"reached": len(reached), "seeds": seeds}
    if reached:
        figure["rounds"] = statistics.median(moment.round for moment in reached)
        figure["kilobytes_per_node"] = statistics.median(moment.bytes for moment in reached) / 1e3
        for megabits in MEGABITS:
            spent = [seconds(arm, moment, megabits) for moment in reached]
            figure[f"seconds_at_{megabits}_mbit"] = statistics.median(spent)
    return figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--partition", default="dirichlet", choices=("iid", "dirichlet", "by_label"))
    parser.add_argument("--only", default="", help="names of ways, comma-separated; `relay` for the relays")
    parser.add_argument("--sites", type=int, default=4, help="sites, each with a relay (default %(default)s)")
    parser.add_argument("--readers", type=int, default=64, help="of policies, at all sites (default %(default)s)")
    parser.add_argument("--megabytes", type=float, default=4.0, help="size of the policy (default %(default)s)")


def main(options: Options) -> None:
    given = options.more
    chosen = [arm for arm in ARMS if not given.only or arm.name in given.only.split(",")]
    if options.quick:
        chosen = [arm for arm in chosen if arm.name in ("fedavg_every_step", "diloco_30_steps_int8")]
    found: dict[str, Any] = {}
    print(f"{'':24}{'reached':>8}{'rounds':>8}{'kB/node':>10}" + "".join(f"{f's, {m} Mbit/s':>14}" for m in MEGABITS))
    for arm in chosen:
        one = found[arm.name] = figures(arm, 1 if options.quick else given.seeds, given.partition)
        row = [one.get("rounds"), one.get("kilobytes_per_node"), *(one.get(f"seconds_at_{m}_mbit") for m in MEGABITS)]
        shown = "".join(
            f"{'-' if value is None else format(value, '.4g'):>{width}}"
            for value, width in zip(row, (8, 10, 14, 14, 14), strict=True)
        )
        print(f"{arm.name:24}{one['reached']:>5}/{one['seeds']}{shown}", flush=True)
    bytes_of = {name: one.get("kilobytes_per_node") for name, one in found.items()}
    base = bytes_of.get("fedavg_every_step")
    fewer = {name: base / value for name, value in bytes_of.items() if base and value and name.startswith("diloco")}
    relays: dict[str, Any] = {}
    if not given.only or "relay" in given.only.split(","):
        relays = asyncio.run(measure(given.sites, given.readers, int(given.megabytes * 1e6)))
        for name, value in relays.items():
            print(f"{name:28}{value:>12.4g}", flush=True)
    ways = {"mark": MARK, "partition": given.partition, "ways": found, "times_fewer_bytes": fewer}
    print(json.dumps({**ways, "relays": relays}))


if __name__ == "__main__":
    main(parse_options(__doc__, known=(), usual=(), add_arguments=add_arguments))
