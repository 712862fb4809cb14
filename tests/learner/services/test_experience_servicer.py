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
