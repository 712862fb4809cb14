"""Actors, a relay and the learner's PolicyService, over real gRPC."""

import asyncio
import contextlib
import hashlib
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from actor.config import LimitsConfig
from actor.learner.policy_cache import PolicyCache
from actor.learner.site_relay import Relay
from actor.metrics import ActorMetrics
from learner.policies.registry import PolicyRegistry
from learner.services.policy_servicer import PolicyServicer
from parlmesh.distribution.policy_download import policy_stub
from parlmesh.distribution.policy_messages import EncodedPolicy
from parlmesh.errors import NotFound
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.relay.config import RelayConfig
from parlmesh.relay.policy_source import Source
from parlmesh.relay.servicer import RelayServicer
from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.testing import serve, wait_until_async
from parlmesh.testing.proxy import Proxy
from parlmesh.types import ActionSpec
from parlmesh.v1.policy_service_pb2 import GetPolicyRequest, GetPolicyResponse, WatchPolicyRequest

SPEC = PolicySpec(observation_shape=(4,), action=ActionSpec("discrete", sizes=(2,)), hidden=(8,))
WAIT = 20.0


def policy(seed, size=100_000):
    weights = np.random.default_rng(0).normal(size=size).astype(np.float32)
    return pack_policy(SPEC, {"w": weights + np.float32(seed * 1e-4)})


@dataclass(frozen=True)
class Reader:
    """An actor's policies and its reports of them."""

    cache: PolicyCache
    relay: Relay
    metrics: ActorMetrics

    async def get(self, version: int) -> Any:
        return (await self.cache.get("run", version, WAIT)).policy

    async def get_exact(self, version: int) -> Any:
        return (await self.cache.get_exact("run", version, WAIT)).policy

    def relayed(self, result: str = "fetched") -> float:
        return float(self.metrics.relay_fetches.labels(result)._value.get())


class Counting(PolicyServicer):
    """A learner that counts the policy bytes it sends and the requests for policies."""

    def __init__(self, registry):
        self.stopping = asyncio.Event()
        super().__init__(lambda run_id: registry, self.stopping)
        self.sent = 0
        self.address = ""

    async def _messages(self, published, encoding, base):
        found = await super()._messages(published, encoding, base)
        assert isinstance(found, EncodedPolicy)
        self.sent += found.size_bytes
        return found


@asynccontextmanager
async def learning(registry):
    learner = Counting(registry)
    async with serve([learner.service]) as address:
        learner.address = address
        yield learner
        learner.stopping.set()


@asynccontextmanager
async def relaying(learner, **settings):
    config = RelayConfig(learner=learner, **settings)
    async with open_channel(learner) as channel:
        source = Source(policy_stub(channel), config)
        async with serve([RelayServicer(source).service]) as address:
            yield address
        await source.close()


@asynccontextmanager
async def reading(learner, relay, encoding="safetensors", **limits):
    metrics, rng = ActorMetrics(CollectorRegistry()), random.Random(0)
    options = LimitsConfig(**{"reconnect_seconds": 0.02, "relay_retry_seconds": 0.05} | limits)
    async with contextlib.AsyncExitStack() as stack:
        channel, near = [await stack.enter_async_context(open_channel(each)) for each in (learner, relay)]
        found = Relay(policy_stub(near), near, limits=options, metrics=metrics, rng=rng)
        async with found:
            cache = PolicyCache(
                policy_stub(channel),
                bytes,  # type: ignore[arg-type]  # nothing acts here
                limits=options,
                metrics=metrics,
                rng=rng,
                encoding=encoding,
                relay=found,
            )
            async with cache:
                yield Reader(cache, found, metrics)


@asynccontextmanager
async def sites(learner, count, readers, **settings):
    """Readers at several sites, each with a relay."""
    async with asyncio.timeout(60):
        stack = []
        try:
            found = []
            for _ in range(count):
                relay = relaying(learner.address, **settings)
                stack.append(relay)
                near = await relay.__aenter__()
                for _ in range(readers):
                    reader = reading(learner.address, near)
                    stack.append(reader)
                    found.append(await reader.__aenter__())
            yield found
        finally:
            for context in reversed(stack):
                await context.__aexit__(None, None, None)


async def test_readers_of_a_site_cost_the_learner_one_policy():
    registry = PolicyRegistry("run", "uid")
    registry.publish(1, policy(1))
    async with learning(registry) as learner, sites(learner, 2, 4) as readers:
        for version in (1, 2):
            if version > 1:
                registry.publish(version, policy(version))
            found = await asyncio.gather(*(reader.get(version) for reader in readers))
            assert set(found) == {policy(version)}
        assert learner.sent == 2 * 2 * len(policy(1))
        assert [reader.relayed() for reader in readers] == [2] * 8


@pytest.mark.parametrize("encoding", ["safetensors", "zstd", "delta"])
async def test_every_encoding_comes_through_a_relay(encoding):
    registry = PolicyRegistry("run", "uid")
    registry.publish(1, policy(1))
    async with (
        learning(registry) as learner,
        relaying(learner.address, policy_encoding=encoding) as near,
        reading(learner.address, near, encoding) as reader,
    ):
        sent = []
        for version in (1, 2, 3):
            if version > 1:
                registry.publish(version, policy(version))
            assert await reader.get(version) == policy(version)
            sent.append(learner.sent)
        assert reader.relayed() == 3
        if encoding == "delta":
            assert sent[2] - sent[1] < 0.8 * sent[0]


async def test_a_version_by_number_comes_from_the_relay_by_the_digest_that_the_learner_says():
    registry = PolicyRegistry("run", "uid")
    for version in (1, 2):
        registry.publish(version, policy(version))
    async with learning(registry) as learner, sites(learner, 1, 3) as readers:
        for reader in readers:
            assert await reader.get_exact(1) == policy(1)
        assert learner.sent == len(policy(1))
        with pytest.raises(NotFound, match="version 7 is not kept"):
            await readers[0].get_exact(7)


@pytest.mark.parametrize("fault", ["refuse", "hold"])
async def test_a_relay_that_is_gone_or_silent_costs_no_version_and_is_used_again(fault):
    registry = PolicyRegistry("run", "uid")
    registry.publish(1, policy(1))
    async with (
        learning(registry) as learner,
        relaying(learner.address) as near,
        Proxy(near) as proxy,
        reading(learner.address, proxy.address, relay_seconds=0.5) as reader,
    ):
        await reader.get(1)
        getattr(proxy, fault)()
        registry.publish(2, policy(2))
        assert await reader.get(2) == policy(2)
        assert not reader.relay.answers
        assert reader.metrics.relay_left._value.get() == 1
        assert reader.relayed("failed") == 1
        assert proxy.cuts > 0 if fault == "refuse" else proxy.up.held > 0
        proxy.heal()
        await wait_until_async(lambda: reader.relay.answers, WAIT)
        registry.publish(3, policy(3))
        assert await reader.get(3) == policy(3)
        assert reader.relayed() == 2
        assert reader.metrics.relay_left._value.get() == 0


class Liar(RelayServicer):
    """A relay that sends other weights under the requested digest, with a checksum that fits them."""

    field = "source_digest"

    async def GetPolicy(self, request, context):
        data = policy(99)
        published = await self._source.get(request)
        forged = type(published)(
            type(published.blob)(request.run_id, request.version, hashlib.sha256(data).digest(), data, request.run_uid),
            0.0,
        )
        encoded = await self._encodings.get(forged, "zstd", None)
        setattr(encoded._header, self.field, request.digest)
        for message in encoded:
            yield message


@pytest.mark.parametrize("field", ["source_digest", "digest"])
async def test_weights_that_the_learner_did_not_announce_are_never_acted_with(monkeypatch, field):
    monkeypatch.setattr(Liar, "field", field)
    registry = PolicyRegistry("run", "uid")
    registry.publish(1, policy(1))
    async with learning(registry) as learner, open_channel(learner.address) as channel:
        source = Source(policy_stub(channel), RelayConfig(learner=learner.address))
        async with serve([Liar(source).service]) as near, reading(learner.address, near, "zstd") as reader:
            assert await reader.get(1) == policy(1)
            assert reader.relayed("corrupt") == 1
        await source.close()


class Boaster(RelayServicer):
    """A relay that sends the right weights, and says something false about them."""

    lie = ("run_uid", "another")

    async def GetPolicy(self, request, context):
        async for message in super().GetPolicy(request, context):
            response = GetPolicyResponse.FromString(message)
            if response.HasField("header"):
                setattr(response.header, *self.lie)
            yield response.SerializeToString()


@pytest.mark.parametrize("encoding", ["safetensors", "zstd", "delta"])
@pytest.mark.parametrize("lie", [("run_uid", "another"), ("source_digest", bytes(32)), ("run_id", "another")])
async def test_only_the_learner_is_believed_about_which_weights_they_are(monkeypatch, lie, encoding):
    monkeypatch.setattr(Boaster, "lie", lie)
    registry = PolicyRegistry("run", "uid")
    registry.publish(1, policy(1))
    async with learning(registry) as learner, open_channel(learner.address) as channel:
        source = Source(policy_stub(channel), RelayConfig(learner=learner.address))
        async with serve([Boaster(source).service]) as near, reading(learner.address, near, encoding) as reader:
            for version in (1, 2):
                if version > 1:
                    registry.publish(version, policy(version))
                held = await reader.cache.get("run", version, WAIT, "uid")
                assert (held.policy, held.run_uid) == (policy(version), "uid")
                assert held.digest == hashlib.sha256(policy(version)).digest()
            assert (await reader.cache.get_exact("run", 1, WAIT, "uid")).policy == policy(1)
            assert reader.relayed() == 2
        await source.close()


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    return error_from_rpc(caught.value)


async def test_a_relay_refuses_what_it_does_not_offer():
    registry = PolicyRegistry("run", "uid")
    registry.publish(1, policy(1))
    async with learning(registry) as learner, relaying(learner.address) as near, open_channel(near) as channel:
        stub = policy_stub(channel)
        error = await refused(stub.GetPolicy(GetPolicyRequest(run_id="run"), timeout=WAIT))
        assert (error.reason, "32 bytes" in error.message) == ("POLICY_DIGEST", True)
        error = await refused(stub.WatchPolicy(WatchPolicyRequest(run_id="run"), timeout=WAIT))
        assert error.message == "a relay does not announce versions; watch the learner"
        # The learner checks the size before it sends anything.
        other = GetPolicyRequest(run_id="run", version=1, digest=bytes(32))
        error = await refused(stub.GetPolicy(other, timeout=WAIT))
        assert (error.reason, learner.sent) == ("POLICY_DIGEST", 0)


async def test_a_policy_over_the_limit_is_refused_before_it_is_fetched():
    registry = PolicyRegistry("run", "uid")
    published = registry.publish(1, policy(1))
    limits = {"policy_bytes": 2_000}
    async with (
        learning(registry) as learner,
        relaying(learner.address, limits=limits) as near,
        open_channel(near) as channel,
    ):
        asked = GetPolicyRequest(run_id="run", version=1, digest=published.blob.digest)
        error = await refused(policy_stub(channel).GetPolicy(asked, timeout=WAIT))
        assert "the limit is 2000 (limits.policy_bytes)" in error.message
