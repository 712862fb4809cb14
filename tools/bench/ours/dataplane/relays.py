"""One policy to many readers of several sites: the load on the learner's link, with a relay for each site and without.

The learner's PolicyService and the actors' policy caches run in this process, relays in their own processes. What the
learner sends is counted on its connections, including announcements. Then a relay is killed, and one is stopped.
"""

import asyncio
import contextlib
import hashlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from actor.config import LimitsConfig
from actor.learner.policy_cache import PolicyCache
from actor.learner.site_relay import Relay
from actor.metrics import ActorMetrics
from learner.policies.registry import PolicyRegistry
from learner.services.policy_servicer import PolicyServicer
from parlmesh.distribution.policy_download import policy_stub
from parlmesh.rpc import open_channel
from parlmesh.testing import Process, free_port, serve, wait_until_async
from parlmesh.testing.proxy import Proxy

ROOT = Path(__file__).resolve().parents[4]
SECONDS = 60.0
RUN = "run"


class Readers:
    """The actors' side: one policy cache each, which uses its site's relay if there is one."""

    def __init__(self) -> None:
        self.caches: list[PolicyCache] = []
        self.metrics: list[ActorMetrics] = []
        self._stack = AsyncExitStack()

    async def add(self, learner: str, relay: str = "") -> None:
        metrics, rng = ActorMetrics(CollectorRegistry()), random.Random(len(self.caches))  # noqa: S311 - no secret
        limits = LimitsConfig()
        channel = await self._stack.enter_async_context(open_channel(learner))
        found: Relay | None = None
        if relay:
            near = await self._stack.enter_async_context(open_channel(relay))
            found = Relay(policy_stub(near), near, limits=limits, metrics=metrics, rng=rng)
            await self._stack.enter_async_context(found)
        # The policy itself arrives: it is compared by its digest.
        cache: Any = PolicyCache(policy_stub(channel), bytes, limits=limits, metrics=metrics, rng=rng, relay=found)  # type: ignore[arg-type]
        await self._stack.enter_async_context(cache)
        self.caches.append(cache)
        self.metrics.append(metrics)

    async def have(self, version: int, data: bytes) -> float:
        """Seconds until every reader has the version; all digests are compared."""
        start = time.perf_counter()
        held: list[Any] = await asyncio.gather(*(cache.get(RUN, version, SECONDS) for cache in self.caches))
        spent = time.perf_counter() - start
        digest = hashlib.sha256(data).digest()
        wrong = [each for each in held if hashlib.sha256(each.policy).digest() != digest or each.digest != digest]
        if wrong:
            raise ValueError(f"{len(wrong)} readers hold other weights than were published")
        return spent

    def count(self, result: str) -> int:
        return int(sum(each.relay_fetches.labels(result)._value.get() for each in self.metrics))

    async def close(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def learning(registry: PolicyRegistry) -> AsyncIterator[Proxy]:
    """The learner's service behind a link that counts."""
    stopping = asyncio.Event()
    async with serve([PolicyServicer(lambda run_id: registry, stopping).service]) as address, Proxy(address) as link:
        yield link
        stopping.set()


def start_relay(port: int, learner: str) -> Process:
    settings = {"listen.port": port, "metrics.port": "null", "learner": learner, "listen.max_message_bytes": 8 << 20}
    arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return Process("parlmesh.relay", *arguments, cwd=ROOT)


async def measure(sites: int, readers: int, size: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    data = [rng.bytes(size) for _ in range(5)]
    registry = PolicyRegistry(RUN, "bench")
    registry.publish(1, data[0])
    found: dict[str, Any] = {"sites": sites, "readers": readers, "model_megabytes": size / 1e6}
    async with learning(registry) as link:
        direct = Readers()
        for _ in range(readers):
            await direct.add(link.address)
        before = link.down.carried_bytes
        found["direct_seconds"] = await direct.have(1, data[0])
        found["direct_models_sent"] = (link.down.carried_bytes - before) / size
        await direct.close()
        with contextlib.ExitStack() as stack:
            ports = [free_port() for _ in range(sites)]
            relays = [stack.enter_context(start_relay(port, link.address)) for port in ports]
            await wait_until_async(lambda: all(relay.events("learner_serves") for relay in relays), SECONDS)
            found |= await _relayed(registry, link, ports, relays, readers, data)
    return found


async def _relayed(
    registry: PolicyRegistry, link: Proxy, ports: list[int], relays: list[Process], readers: int, data: list[bytes]
) -> dict[str, Any]:
    size, found = len(data[0]), {}
    near = Readers()
    for number in range(readers):
        await near.add(link.address, f"127.0.0.1:{ports[number % len(ports)]}")
    before = link.down.carried_bytes
    found["relayed_seconds"] = await near.have(1, data[0])
    found["relayed_models_sent"] = (link.down.carried_bytes - before) / size
    before = link.down.carried_bytes
    registry.publish(2, data[1])
    found["next_version_seconds"] = await near.have(2, data[1])
    found["next_version_models_sent"] = (link.down.carried_bytes - before) / size
    found["relayed_fetches"], found["corrupt"] = near.count("fetched"), near.count("corrupt")
    for fault, version in (("killed", 3), ("stopped", 4)):
        relay = relays[version - 3]
        if fault == "killed":
            relay.kill()
        else:
            os.kill(relay.pid, signal.SIGSTOP)
        registry.publish(version, data[version - 1])
        found[f"relay_{fault}_seconds"] = await near.have(version, data[version - 1])
        if near.count("failed") == 0:
            raise ValueError(f"no reader missed the relay that was {fault}")
        if fault == "stopped":
            os.kill(relay.pid, signal.SIGCONT)
    left = sum(each.relay_left._value.get() for each in near.metrics)
    # Readers of the resumed relay come back to it; those of the killed one stay with the learner.
    start = time.perf_counter()
    await wait_until_async(lambda: sum(each.relay_left._value.get() for each in near.metrics) < left, SECONDS)
    found["taken_again_seconds"] = time.perf_counter() - start
    await near.close()
    return found
