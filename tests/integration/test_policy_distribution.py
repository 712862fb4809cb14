"""An actor's policy cache against the learner's PolicyService, over real gRPC."""

import asyncio
import random
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from actor.config import LimitsConfig
from actor.learner.policy_cache import PolicyCache
from actor.metrics import ActorMetrics
from learner.policies.registry import PolicyRegistry
from learner.services.policy_servicer import PolicyServicer
from parlmesh.distribution.policy_download import policy_stub
from parlmesh.policies import PolicySpec, pack_policy, unpack_policy
from parlmesh.rpc import open_channel
from parlmesh.testing import serve, wait_until_async
from parlmesh.types import ActionSpec

SPEC = PolicySpec(observation_shape=(4,), action=ActionSpec("discrete", sizes=(2,)), hidden=(8,))
WAIT = 60.0
ENCODINGS = ["safetensors", "zstd", "bfloat16", "delta"]


def policy(seed, size=300_000):
    weights = np.random.default_rng(0).normal(size=size).astype(np.float32)
    return pack_policy(SPEC, {"w": weights + np.float32(seed * 1e-4)})


@asynccontextmanager
async def serving(registry):
    stopping = asyncio.Event()
    service = PolicyServicer(lambda run_id: registry, stopping).service
    async with serve([service]) as address:
        yield address
        stopping.set()


# These tests compare blobs, and load none.
as_it_is: Any = bytes


@asynccontextmanager
async def reading(address, encoding, **limits):
    metrics = ActorMetrics(CollectorRegistry())
    options = LimitsConfig(**{"reconnect_seconds": 0.02} | limits)
    async with open_channel(address) as channel:
        cache = PolicyCache(
            policy_stub(channel),
            as_it_is,
            limits=options,
            metrics=metrics,
            rng=random.Random(0),
            encoding=encoding,
        )
        async with cache:
            yield cache


def received(cache):
    return cache._metrics.policy_bytes._value.get()


def fetched(cache, result="fetched"):
    return cache._metrics.policy_fetches.labels(result)._value.get()


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_every_version_arrives_by_every_encoding_and_late_joiners_too(encoding):
    registry = PolicyRegistry("run")
    registry.publish(1, policy(1))
    async with serving(registry) as address, reading(address, encoding) as early:
        await early.get("run", 1, WAIT)
        for version in (2, 3):
            registry.publish(version, policy(version))
            held = await early.get("run", version, WAIT)
        async with reading(address, encoding) as late:
            joined = await late.get("run", 3, WAIT)
        assert (held.version, joined.version) == (3, 3)
        assert held.policy == joined.policy
        assert held.digest == registry.get("", 3).blob.digest
        if encoding == "bfloat16":
            exact, rounded = (unpack_policy(data)[1]["w"] for data in (policy(3), held.policy))
            assert np.max(np.abs(exact - rounded) / np.abs(exact)) <= 2**-8
            assert held.policy != policy(3)
        else:
            assert held.policy == policy(3)


async def test_deltas_are_smaller_and_are_undone_bit_for_bit():
    registry = PolicyRegistry("run")
    registry.publish(1, policy(1))
    async with serving(registry) as address, reading(address, "delta") as cache:
        await cache.get("run", 1, WAIT)
        first = received(cache)
        registry.publish(2, policy(2))
        held = await cache.get("run", 2, WAIT)
        assert held.policy == policy(2)
        assert received(cache) - first < 0.8 * first


async def test_a_delta_whose_base_is_gone_comes_whole():
    first, second = PolicyRegistry("run"), PolicyRegistry("run")
    first.publish(1, policy(1))
    stopping = asyncio.Event()
    servicer = PolicyServicer(lambda run_id: first, stopping)
    async with serve([servicer.service]) as address:
        async with reading(address, "delta") as cache:
            await cache.get("run", 1, WAIT)
            # The learner comes back from its checkpoint: version 1 is not among those it has.
            second.publish(12, policy(12))
            asked = []

            def registry_of(run_id):
                asked.append(run_id)
                return second

            servicer._registry_of = registry_of
            stopping.set()
            # The cache does not go back before the stream has seen it, and the next version is there.
            await wait_until_async(lambda: asked, WAIT)
            servicer._stopping = asyncio.Event()
            held = await cache.get("run", 12, WAIT)
            assert held.policy == policy(12)
        servicer._stopping.set()


async def test_a_version_of_another_size_comes_whole_to_a_reader_of_deltas():
    registry = PolicyRegistry("run")
    registry.publish(1, policy(1))
    async with serving(registry) as address, reading(address, "delta") as cache:
        await cache.get("run", 1, WAIT)
        registry.publish(2, policy(2, size=1_000))
        assert (await cache.get("run", 2, WAIT)).policy == policy(2, size=1_000)


async def test_a_version_that_is_asked_for_exactly_comes_in_the_same_encoding():
    registry = PolicyRegistry("run")
    for version in (1, 2):
        registry.publish(version, policy(version))
    for encoding in ENCODINGS:
        async with serving(registry) as address, reading(address, encoding) as cache:
            held = await cache.get_exact("run", 1, WAIT)
            assert held.version == 1
            if encoding != "bfloat16":
                assert held.policy == policy(1)


async def test_a_policy_over_the_limit_is_refused_before_it_is_unpacked():
    registry = PolicyRegistry("run")
    registry.publish(1, bytes(100_000))
    async with serving(registry) as address, reading(address, "zstd", policy_bytes=2_000, policy_seconds=5.0) as cache:
        waiting = asyncio.create_task(cache.get("run", 1, WAIT))
        await wait_until_async(lambda: cache._metrics.reconnects.labels("learner")._value.get() > 0, WAIT)
        assert received(cache) == 0
        waiting.cancel()
