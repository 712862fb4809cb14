import asyncio

import grpc.aio
import numpy as np
import safetensors.numpy

from learner.federation.rules.records import FederationState
from parlmesh.v1 import federation_service_pb2 as pb

from .conftest import SIZE

ONES = np.ones(SIZE, np.float32)


async def receive(call):
    """One version, which is small enough for one message."""
    answer = await call.read()
    assert answer.header.size_bytes == len(answer.data)
    return answer.header.version, safetensors.numpy.load(answer.data)["weight"][0]


def watch(bench, *nodes, have=0):
    request = pb.WatchFederatedModelRequest(federation_id="f", node_ids=nodes, have_version=have)
    return bench.stub.WatchFederatedModel(request, timeout=60.0)


async def test_nodes_are_sent_every_version_that_they_are_asked_to_start_from_until_the_federation_ends(bench):
    federation = await bench.start(nodes=("a", "sim#0", "sim#1"), rounds=3)
    asked = await bench.assignments(federation, 1)
    alone, host = watch(bench, "a"), watch(bench, "sim", "elsewhere")
    # They were asked before they watched.
    assert await receive(alone) == (1, 0.0)
    assert await receive(host) == (1, 0.0)
    for number in (1, 2):
        asked = await bench.assignments(federation, number)
        for assignment in asked.values():
            await bench.submit(assignment, ONES)
        assert await receive(alone) == (number + 1, float(number))
        assert await receive(host) == (number + 1, float(number))
    for assignment in (await bench.assignments(federation, 3)).values():
        await bench.submit(assignment, ONES)
    await bench.until(lambda: federation.core.state is FederationState.FINISHED)
    # Nobody is asked to start from the last version.
    assert await alone.read() is grpc.aio.EOF
    assert await watch(bench, "a").read() is grpc.aio.EOF


async def test_nodes_that_are_not_asked_and_versions_that_are_there_already_are_not_sent(bench):
    federation = await bench.start(nodes=("a",), rounds=5)
    asked = await bench.assignments(federation, 1)
    stranger, ahead = watch(bench, "b"), watch(bench, "a", have=1)
    await bench.until(lambda: len(federation.watchers._by_host) == 2)
    await bench.submit(asked["a"], ONES)
    assert await receive(ahead) == (2, 1.0)
    reading = asyncio.ensure_future(stranger.read())
    assert not (await asyncio.wait({reading}, timeout=0.1))[0]
    stranger.cancel()
    ahead.cancel()
    await asyncio.wait({reading})
    await bench.until(lambda: not federation.watchers._by_host)


async def test_a_slow_watcher_is_owed_the_newest_version_only(bench):
    federation = await bench.start(nodes=("a",), rounds=9)
    watcher = federation.watch(["a"], 0)
    for number in (1, 2, 3):
        asked = await bench.assignments(federation, number)
        await bench.until(lambda number=number: federation.core.round == number)
        await bench.submit(federation.core.assignments["a"], ONES)
        del asked
    await bench.until(lambda: federation.core.round == 4)
    assert (await watcher.next()).version == 4
    federation.watchers.close()
    assert await watcher.next() is None
