import asyncio
from typing import Any

import numpy as np
import pytest

from actor.federation.model_downloads import ModelWatch, arriving_models
from parlmesh.digests import fast_digest
from parlmesh.errors import FleetError, Unavailable
from parlmesh.federation.model_file import model_header
from parlmesh.federation.schema import ModelSchema
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.wire.chunks import MODEL_DATA, chunk_to_wire


def messages(version, *, chunk=64, checksum=None):
    weight = np.full(50, version, np.float32)
    data = model_header(ModelSchema.of({"weight": weight}), {}) + weight.tobytes()
    header = pb.ModelHeader(
        federation_id="f", version=version, size_bytes=len(data), checksum=checksum or fast_digest(data)
    )
    found = [chunk_to_wire(MODEL_DATA, data[start : start + chunk]) for start in range(0, len(data), chunk)]
    return [pb.GetFederatedModelResponse(header=header).SerializeToString() + found[0], *found[1:]]


class Call:
    """A stream whose messages the test gives; an exception ends it."""

    def __init__(self):
        self.queue: asyncio.Queue[Any] = asyncio.Queue()

    def give(self, *items):
        for item in items:
            self.queue.put_nowait(item)

    def cancel(self):
        self.give(None)

    async def __aiter__(self):
        while (item := await self.queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item


def made(have=1):
    call, arrived = Call(), []
    watch = ModelWatch(call, have, 1 << 20, lambda federation_id, version, model: arrived.append(version))
    return call, watch, arrived


async def test_a_version_goes_to_those_who_wait_for_it_and_to_those_who_will():
    call, watch, arrived = made()
    waiting = asyncio.ensure_future(watch.model(2))
    await asyncio.sleep(0)
    call.give(*messages(2), *messages(3))
    async with asyncio.timeout(60.0):
        found = await waiting
        assert found.tensors["weight"][0] == 2.0
    await watch.close()
    assert arrived == [2, 3]
    # Whoever was about to ask when it came still gets it.
    assert (await watch.model(3)).tensors["weight"][0] == 3.0
    assert await watch.model(2) is None


async def test_a_version_that_will_not_come_this_way_is_not_waited_for():
    call, watch, _ = made(have=5)
    assert await watch.model(5) is None
    skipped, newer = asyncio.ensure_future(watch.model(6)), asyncio.ensure_future(watch.model(8))
    await asyncio.sleep(0)
    call.give(*messages(7))
    async with asyncio.timeout(60.0):
        assert await skipped is None
        call.give(Unavailable("away"))
        assert await newer is None
        assert await watch.model(9) is None
    assert watch.ended


async def test_a_damaged_version_ends_the_stream():
    call, watch, arrived = made()
    waiting = asyncio.ensure_future(watch.model(2))
    await asyncio.sleep(0)
    call.give(*messages(2, checksum=bytes(16)), *messages(3))
    async with asyncio.timeout(60.0):
        assert await waiting is None
    assert watch.ended
    assert arrived == []


async def test_a_stream_that_ends_within_a_model_gives_it_as_it_is_and_data_without_a_header_is_refused():
    call = Call()
    call.give(*messages(2)[:-1], None)
    assert [model.whole() async for model in arriving_models(call, 1 << 20)] == [None]
    call.give(messages(2)[-1], None)
    with pytest.raises(FleetError, match="without a header"):
        [model async for model in arriving_models(call, 1 << 20)]
