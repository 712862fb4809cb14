"""MB/s of trajectories into a real learner from two processes, and of the same bytes over a bare stream, in turns.

They are handed over in shared memory, as on every host that has the learner too; with --sent over the stream, as from
other hosts.
The learner's services, checks and queue are real. Nothing trains: what is queued is taken out and counted as trained,
so that the data plane is measured instead of the trainer.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import uvloop

from learner.build import build_runs, build_services
from learner.config import ExperienceConfig, LearnerConfig, TrainingConfig
from learner.runs.training_loop import TrainingRun
from parlmesh.config import ListenConfig
from parlmesh.heap import keep_freed_memory
from parlmesh.rpc import open_channel
from parlmesh.rpc.server import FleetServer

from .bare import BareServer
from .children import Children

SENDERS = 2
ENVIRONMENTS = 64
WARM_UP_SECONDS = 0.5
# Longer than a trainer would wait between batches, and far from filling the queue.
DRAIN_SECONDS = 0.02
MEGABYTE = 1e6


async def measure(seconds: float, turns: int, trajectory_steps: int, *, sent: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        training = TrainingConfig(num_envs=ENVIRONMENTS, trajectory_steps=trajectory_steps)
        experience = ExperienceConfig(shared_memory=not sent)
        config = LearnerConfig(run_id="run", run_dir=Path(folder), training=training, experience=experience)
        scheduler = open_channel(config.scheduler)
        runs = build_runs(config, scheduler)
        runs.open()
        live = runs.get("run").live
        assert live is not None
        run = live.run
        run.publish()
        services = build_services(config, runs, asyncio.Event())
        server = FleetServer(listen=ListenConfig(), security=config.security, services=services)
        bare = BareServer()
        await server.start()
        draining = asyncio.create_task(drain(run))
        shape = ("--environments", str(ENVIRONMENTS), "--trajectory-steps", str(trajectory_steps))
        common = ("--learner", server.address, "--bare", await bare.start(), *shape)
        names = [("--name", f"actor-{index}") for index in range(SENDERS)]
        async with Children(
            "tools.bench.ours.dataplane.upload_sender", [(*name, *common) for name in names]
        ) as senders:
            await rate(senders, "trajectories", WARM_UP_SECONDS)
            await rate(senders, "bytes", WARM_UP_SECONDS)
            pairs = [
                (await rate(senders, "trajectories", seconds), await rate(senders, "bytes", seconds))
                for _ in range(turns)
            ]
        draining.cancel()
        await bare.stop()
        await server.drain()
        await scheduler.close()
        live.close()
    queue = run.queue
    assert queue.received == queue.trained + queue.training + len(queue) + sum(queue.dropped.values())
    assert not queue.dropped, queue.dropped
    return {
        "upload_mb_per_second": statistics.median(upload for upload, _ in pairs),
        "bare_stream_mb_per_second": statistics.median(alone for _, alone in pairs),
        "column_bytes": column_bytes(trajectory_steps),
        "received": queue.received,
        "turns": [[round(upload), round(alone)] for upload, alone in pairs],
    }


async def drain(run: TrainingRun) -> None:
    """Replaces the trainer: takes batches as they arrive and drops them."""
    while True:
        while (batch := run.queue.take(1, run.progress.version)) is not None:
            run.queue.finish(len(batch), applied=True)
        await asyncio.sleep(DRAIN_SECONDS)


async def rate(senders: Children, what: str, seconds: float) -> float:
    """MB/s of all senders together."""
    senders.tell(what=what, seconds=seconds)
    answers = await senders.answers()
    return sum(float(answer["bytes"]) / float(answer["seconds"]) for answer in answers) / MEGABYTE


def column_bytes(trajectory_steps: int) -> int:
    """Bytes of one trajectory: observations, actions, log-probabilities, rewards and three flags."""
    return ENVIRONMENTS * ((trajectory_steps + 1) * 16 + trajectory_steps * (8 + 4 + 4 + 3))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--trajectory-steps", type=int, default=448)
    parser.add_argument("--sent", action="store_true", help="over the stream, as from other hosts")
    given = parser.parse_args()
    keep_freed_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure(given.seconds, given.turns, given.trajectory_steps, sent=given.sent))
        print(json.dumps(found))
