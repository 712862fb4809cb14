"""One sending process of `uploads`: trajectories through an actor's own upload stream, or bare bytes."""

import argparse
import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc.aio
import numpy as np
import uvloop
from prometheus_client import CollectorRegistry

from actor.config import LimitsConfig
from actor.learner.trajectory_uploads import Uploads, upload_stream
from actor.metrics import ActorMetrics
from parlmesh.heap import keep_freed_memory
from parlmesh.policies import load_policy
from parlmesh.rollouts import Collector
from parlmesh.rpc import open_channel
from parlmesh.types import Fragment, Trajectory
from parlmesh.v1.policy_service_pb2 import GetPolicyRequest
from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceStub
from parlmesh.wire import EncodedTrajectory, trajectory_to_request

from . import bare, children

FRAGMENTS = 8
IN_FLIGHT = 8


@dataclass(frozen=True, slots=True)
class Sender:
    """A process's channels, and the requests it sends over them repeatedly."""

    name: str
    uploads: Uploads
    bare_channel: grpc.aio.Channel
    fragments: list[Fragment]
    version: int

    async def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        send = self.trajectories if order["what"] == "trajectories" else self.bytes_alone
        started = time.perf_counter()
        sent = await send(started + order["seconds"])
        return {"bytes": sent, "seconds": time.perf_counter() - started}

    async def trajectories(self, end: float) -> int:
        """Encodes, sends and awaits receipts, as a rollout does; returns the bytes of accepted trajectories."""
        total = 0

        async def stream(first: int) -> None:
            nonlocal total
            index = first
            while time.perf_counter() < end:
                trajectory = self.message(self.fragments[index % FRAGMENTS], self.uploads.next_sequence())
                receipt = await self.uploads.upload(trajectory)
                assert receipt.error is None, receipt.error
                total += len(trajectory.request)
                index += 1

        async with asyncio.TaskGroup() as group:
            for first in range(IN_FLIGHT):
                group.create_task(stream(first))
        return total

    async def bytes_alone(self, end: float) -> int:
        """Sends the same messages, serialised beforehand, until the server has counted them all."""
        messages = [self.message(fragment, 1).request for fragment in self.fragments]

        async def requests() -> AsyncIterator[bytes]:
            index = 0
            while time.perf_counter() < end:
                yield messages[index % FRAGMENTS]
                index += 1

        upload: Any = self.bare_channel.stream_unary(bare.UPLOAD)
        return int.from_bytes(await upload(requests()), "little")

    def message(self, fragment: Fragment, sequence: int) -> EncodedTrajectory:
        return trajectory_to_request(Trajectory("run", self.name, 1, sequence, self.version, fragment, "task"))


async def main(name: str, learner: str, bare_address: str, num_envs: int, trajectory_steps: int) -> None:
    async with open_channel(learner) as channel, open_channel(bare_address) as bare_channel:
        chunks = [response.data async for response in PolicyServiceStub(channel).GetPolicy(GetPolicyRequest())]
        policy = load_policy(b"".join(chunks))
        collector = Collector({"id": "CartPole-v1"}, num_envs, np.random.SeedSequence(1))
        fragments = [collector.collect(policy, trajectory_steps) for _ in range(FRAGMENTS)]
        limits = LimitsConfig(uploads_in_flight=IN_FLIGHT)
        metrics = ActorMetrics(CollectorRegistry())
        async with Uploads(upload_stream(channel), limits=limits, metrics=metrics, rng=random.Random(1)) as uploads:  # noqa: S311
            await children.obey(Sender(name, uploads, bare_channel, fragments, 1).obey)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--learner", required=True)
    parser.add_argument("--bare", required=True)
    parser.add_argument("--environments", type=int, required=True)
    parser.add_argument("--trajectory-steps", type=int, required=True)
    given = parser.parse_args()
    keep_freed_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(given.name, given.learner, given.bare, given.environments, given.trajectory_steps))
