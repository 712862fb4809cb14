"""A journal with very many queued tasks: seconds from the start of a scheduler process until it serves again."""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from parlmesh.testing import Process
from scheduler.config import SchedulerConfig
from scheduler.core.actions import Persist
from scheduler.core.core import Core
from scheduler.core.task import Task
from scheduler.journal.records import encode
from scheduler.store import SqliteStore
from scheduler.wire import hot_messages

BATCH = 1000
LONGEST_SECONDS = 120.0


def fill(path: Path, queued: int) -> None:
    """Fills the journal as submitters would have, in requests of a thousand."""
    config = SchedulerConfig()
    store = SqliteStore(path, synchronous="normal")
    core = Core(config, now=0.0, wall_time=time.time(), lease_floor=store.open(time.time()).lease_floor)
    body = hot_messages.assignment_body("noop", 3, 3600.0, b"\x0a\x10" + b"x" * 16)
    for first in range(0, queued, BATCH):
        core.submit([Task(f"task-{first + number}", "noop", body, submitter="bench") for number in range(BATCH)], 0.0)
        for action in core.take_actions():
            if isinstance(action, Persist):
                store.append(*encode(action))
    store.close()


def measure(queued: int, rounds: int) -> dict[str, Any]:
    seconds, recovered = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scheduler.sqlite"
        fill(path, queued)
        settings = ("listen.port=0", "metrics.port=null", f"store.path={path}")
        for _ in range(rounds):
            started = time.perf_counter()
            with Process("scheduler", *(part for setting in settings for part in ("--set", setting))) as process:
                process.wait_for("serving", LONGEST_SECONDS)
                seconds.append(time.perf_counter() - started)
                recovered.append(process.events("recovered")[0])
                process.kill()
    assert all(event["unfinished"] == queued for event in recovered)
    return {
        "serving_seconds": statistics.median(seconds),
        "rounds": [round(value, 2) for value in seconds],
        "recovery_seconds": statistics.median(event["seconds"] for event in recovered),
        "queued": queued,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.queued, arguments.rounds)))


if __name__ == "__main__":
    main()
