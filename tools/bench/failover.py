"""How soon another scheduler leads when the leader is killed, stopped or cut off under load, and what that loses.

Real processes on one PostgreSQL of this machine. The clock runs from the fault until a client that knows all schedulers
has had a task accepted that it submitted after the fault.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from parlmesh.grpc_engine import choose_engine
from parlmesh.rpc import open_channel
from parlmesh.testing.postgres import Cluster
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from tools.bench.ground.options import Options, parse_options
from tools.bench.ground.samples import percentile
from tools.faults.takeovers import FAULTS, Schedulers, Turn, under_load

LEASE_SECONDS = 2.0
BATCH = 10_000


async def measure(turns: int, schedulers: int, folder: Path, queued: int = 0) -> dict[str, object]:
    with Cluster(fsync=True) as cluster:
        settings = {"store.lease_seconds": LEASE_SECONDS}
        async with Schedulers(cluster, folder, count=schedulers, settings=settings) as fleet:
            if queued:
                await fill(fleet.addresses, queued)
            async with under_load(fleet) as takeovers:
                for number in range(turns):
                    turn = await takeovers.turn(FAULTS[number % len(FAULTS)])
                    print(f"{number + 1:3}  {turn.fault:5} {turn.acknowledged_seconds:6.2f} s", file=sys.stderr)
            violations = takeovers.violations()
    for problem in (*takeovers.findings, *map(str, violations)):
        print(f"  VIOLATION {problem}", file=sys.stderr)
    return {
        "turns": len(takeovers.turns),
        "lease_seconds": LEASE_SECONDS,
        "schedulers": schedulers,
        "takeover_p50_seconds": _percentile(takeovers.turns, 0.5),
        "takeover_longest_seconds": _percentile(takeovers.turns, 1.0),
        "leads_longest_seconds": max(turn.led_seconds for turn in takeovers.turns),
        **{
            f"{fault}_longest_seconds": _percentile([turn for turn in takeovers.turns if turn.fault == fault], 1.0)
            for fault in FAULTS
            if any(turn.fault == fault for turn in takeovers.turns)
        },
        "queued_tasks": queued,
        "warm_seconds_longest": _warm(fleet),
        "acknowledged_tasks": len(takeovers.loader.acknowledged),
        "violations": len(violations),
        "changes_by_old_leaders": len(takeovers.findings),
    }


async def fill(addresses: str, queued: int) -> None:
    """Tasks that no actor can run: they wait while the schedulers take turns."""
    async with open_channel(addresses) as channel:
        stub: Any = SchedulerServiceStub(channel)
        spec = task_pb2.TaskSpec(kind="noop", placement=task_pb2.Placement(node_id="nowhere"))
        for _ in range(0, queued, BATCH):
            await stub.SubmitTasks(pb.SubmitTasksRequest(tasks=[spec] * BATCH), timeout=60.0)
        print(f"{queued} tasks are queued", file=sys.stderr)


def _warm(fleet: Schedulers) -> float | None:
    """The longest time that a scheduler on standby took to restore its tasks."""
    found = [
        event["seconds"]
        for process in fleet.processes
        if process is not None
        for event in process.events("recovered")
        if event.get("warm")
    ]
    return max(found, default=None)


def _percentile(turns: list[Turn], share: float) -> float:
    return round(percentile([turn.acknowledged_seconds for turn in turns], share), 3)


def main(options: Options) -> int:
    choose_engine()
    with tempfile.TemporaryDirectory() as folder:
        turns = len(FAULTS) if options.quick else options.more.turns
        found = asyncio.run(measure(turns, options.more.schedulers, Path(folder) / "fleet", options.more.queued))
    print(json.dumps(found))
    return 1 if found["violations"] or found["changes_by_old_leaders"] else 0


def own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=50, help="number of faults (default %(default)s)")
    parser.add_argument("--queued", type=int, default=0, help="tasks that wait throughout (default %(default)s)")
    parser.add_argument("--schedulers", type=int, default=2, help="schedulers on one database (default %(default)s)")


if __name__ == "__main__":
    sys.exit(main(parse_options(str(__doc__), known=(), usual=(), add_arguments=own_options)))
