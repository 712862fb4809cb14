import asyncio

from google.rpc import status_pb2  # type: ignore[import-untyped]

from learner.services.experience_servicer import Receipts
from parlmesh.v1.experience_service_pb2 import UploadTrajectoriesResponse


def receipt(sequence, code=0):
    return UploadTrajectoriesResponse(sequence=sequence, status=status_pb2.Status(code=code), policy_version=sequence)


async def written(*items):
    """What is written of receipts that are all there when the writer comes."""
    receipts = Receipts()
    for sequence, code, together in items:
        await receipts.put(receipt(sequence, code), together=together)
    await receipts.end()
    return [(found.sequence, list(found.also_accepted), found.status.code) async for found in receipts]


async def test_good_receipts_that_wait_together_are_written_as_one():
    assert await written((1, 0, True), (2, 0, True), (3, 0, True)) == [(3, [1, 2], 0)]


async def test_a_refusal_is_always_a_receipt_of_its_own_and_keeps_its_place():
    found = await written((1, 0, True), (2, 9, True), (3, 0, True), (4, 0, True))
    assert found == [(2, [1], 9), (4, [3], 0)]


async def test_a_sender_that_does_not_ask_gets_one_receipt_for_each():
    assert await written((1, 0, False), (2, 0, False)) == [(1, [], 0), (2, [], 0)]


async def test_a_lone_receipt_does_not_wait_for_another():
    receipts = Receipts()
    await receipts.put(receipt(1), together=True)
    async with asyncio.timeout(60):
        async for found in receipts:
            assert found.sequence == 1
            break


async def test_reading_stops_while_receipts_cannot_be_written():
    receipts, put = Receipts(), 0

    async def read():
        nonlocal put
        while True:
            await receipts.put(receipt(put), together=True)
            put += 1

    reading = asyncio.create_task(read())
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert put == 64
    reading.cancel()


class Writer:
    """Reads receipts as the stream's writer does."""

    def __init__(self, receipts):
        self.written = []
        self.more = asyncio.Event()
        self.receipts = receipts

    async def run(self):
        async for found in self.receipts:
            self.written.append([*found.also_accepted, found.sequence])
            self.more.set()

    async def until(self, sequence):
        async with asyncio.timeout(60):
            while not self.written or self.written[-1][-1] != sequence:
                self.more.clear()
                await self.more.wait()


async def test_a_sender_with_many_under_way_gets_few_receipts():
    receipts = Receipts()
    writer = Writer(receipts)
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(writer.run())
        for sequence in range(1, 200):
            await receipts.put(receipt(sequence), together=True)
            # Each comes after the last was written, if it was to be written alone.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await receipts.end()
        await writing
    assert [sequence for each in writer.written for sequence in each] == list(range(1, 200))
    assert max(map(len, writer.written)) == 3
    assert len(writer.written) < 110


async def test_a_sender_that_waits_for_each_receipt_gets_nearly_all_at_once(monkeypatch):
    receipts = Receipts()
    writer = Writer(receipts)
    loop = asyncio.get_running_loop()
    timers, call_later = [], loop.call_later

    def counted(*given):
        timers.append(given)
        return call_later(*given)

    monkeypatch.setattr(loop, "call_later", counted)
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(writer.run())
        for sequence in range(1, 500):
            await receipts.put(receipt(sequence), together=True)
            await writer.until(sequence)
        await receipts.end()
        await writing
    monkeypatch.undo()
    assert writer.written == [[sequence] for sequence in range(1, 500)]
    assert 2 <= len(timers) <= 12
