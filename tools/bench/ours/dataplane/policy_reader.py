"""One reading process of `publishing`: an actor's own policy cache, or bare bytes."""

import argparse
import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

import uvloop
from prometheus_client import CollectorRegistry

from actor.config import LimitsConfig
from actor.learner.policy_cache import PolicyCache
from actor.metrics import ActorMetrics
from parlmesh.distribution.policy_download import policy_stub
from parlmesh.rpc import open_channel

from . import bare, children

RUN_ID = "run"
WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Reader:
    """Reports when it has the requested version. The clock is the machine's: all processes share it."""

    cache: PolicyCache
    download: Any

    async def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        if order["what"] == "policy":
            held = await self.cache.get(RUN_ID, order["version"], WAIT_SECONDS)
            return {"at": time.monotonic(), "version": held.version}
        messages = [await self.download.read() for _ in range(order["messages"])]
        size = len(b"".join(messages))
        return {"at": time.monotonic(), "bytes": size}


async def main(learner: str, bare_address: str) -> None:
    metrics, limits = ActorMetrics(CollectorRegistry()), LimitsConfig()
    rng = random.Random(1)  # noqa: S311
    # The bytes are held as they came: building a network from them is the actor's time, not the transport's.
    decode: Any = bytes
    async with (
        open_channel(learner) as channel,
        open_channel(bare_address) as bare_channel,
        PolicyCache(policy_stub(channel), decode, limits=limits, metrics=metrics, rng=rng) as cache,
    ):
        await cache.get(RUN_ID, 1, WAIT_SECONDS)
        download: Any = bare_channel.unary_stream(bare.DOWNLOAD)
        stream = download(b"")
        await stream.read()
        await children.obey(Reader(cache, stream).obey)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learner", required=True)
    parser.add_argument("--bare", required=True)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(given.learner, given.bare))
