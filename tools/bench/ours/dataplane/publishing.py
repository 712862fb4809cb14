"""Milliseconds from the publication of a 4 MB policy until 8 readers hold its verified bytes, beside a bare download.

Each reader is a process. The bare download sends the same bytes in the same chunks to readers that wait for them,
without a digest and without being asked. The two take turns in the same processes.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from learner.build import build_runs, build_services
from learner.config import LearnerConfig
from learner.policies.registry import PolicyRegistry
from parlmesh.config import ListenConfig
from parlmesh.rpc import open_channel
from parlmesh.rpc.server import FleetServer

from .bare import BareServer
from .children import Children

READERS = 8
POLICY_BYTES = 4_000_000
CHUNK_BYTES = 1 << 20
PAUSE_SECONDS = 0.1


async def measure(turns: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        config = LearnerConfig(run_id="run", run_dir=Path(folder))
        scheduler = open_channel(config.scheduler)
        runs = build_runs(config, scheduler)
        runs.open()
        live = runs.get("run").live
        assert live is not None
        run, registry = live.run, live.run.registry
        run.publish()
        stopping = asyncio.Event()
        services = build_services(config, runs, stopping)
        server = FleetServer(listen=ListenConfig(), security=config.security, services=services)
        bare = BareServer()
        await server.start()
        arguments = ("--learner", server.address, "--bare", await bare.start())
        pairs = []
        async with Children("tools.bench.ours.dataplane.policy_reader", [arguments] * READERS) as readers:
            for turn in range(turns + 1):
                data = rng.bytes(POLICY_BYTES)
                pair = await publish(readers, registry, data), await send(readers, bare, data)
                if turn:  # the first warms up
                    pairs.append(pair)
        stopping.set()
        await bare.stop()
        await server.drain()
        await scheduler.close()
        live.close()
    return {
        "publish_ms": statistics.median(ours for ours, _ in pairs),
        "bare_publish_ms": statistics.median(alone for _, alone in pairs),
        "bytes": POLICY_BYTES,
        "readers": READERS,
        "turns": [[round(ours, 1), round(alone, 1)] for ours, alone in pairs],
    }


async def publish(readers: Children, registry: PolicyRegistry, data: bytes) -> float:
    version = registry.version + 1
    readers.tell(what="policy", version=version)
    await asyncio.sleep(PAUSE_SECONDS)
    started = time.monotonic()
    registry.publish(version, data)
    answers = await readers.answers()
    assert all(answer["version"] == version for answer in answers)
    return since(started, answers)


async def send(readers: Children, bare: BareServer, data: bytes) -> float:
    messages = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    readers.tell(what="bytes", messages=len(messages))
    await asyncio.sleep(PAUSE_SECONDS)
    started = time.monotonic()
    bare.send(messages)
    answers = await readers.answers()
    assert all(answer["bytes"] == len(data) for answer in answers)
    return since(started, answers)


def since(started: float, answers: list[dict[str, Any]]) -> float:
    """Milliseconds until the last reader had it."""
    return (max(float(answer["at"]) for answer in answers) - started) * 1e3


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(measure(given.turns))))
