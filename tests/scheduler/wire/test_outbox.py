"""Everything that is ready goes out together, in order and in messages of bounded size."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.errors import ResourceExhausted, Unavailable
from scheduler.wire.outbox import BREAK, MAX_WAITING_BYTES, MESSAGE_BYTES, Outbox, messages


async def test_everything_that_is_ready_leaves_in_one_message() -> None:
    outbox = Outbox()
    outbox.put([b"a", b"b"])
    outbox.put([b"c"])
    assert list(await outbox.take()) == [b"abc"]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(outbox.take(), 0.01)
    outbox.put([b"d"])
    assert list(await outbox.take()) == [b"d"]


async def test_what_nobody_waits_for_travels_with_the_next_message() -> None:
    outbox = Outbox()
    outbox.put_patiently([b"a"])
    outbox.put([b"b"])
    assert list(await outbox.take()) == [b"ab"]


async def test_what_nobody_waits_for_goes_alone_when_no_other_message_comes() -> None:
    outbox = Outbox()
    outbox.put_patiently([b"a"])
    outbox.put_patiently([b"b"])
    async with asyncio.timeout(60):
        assert list(await outbox.take()) == [b"ab"]


async def test_parts_made_at_the_last_moment_stand_behind_those_that_were_put() -> None:
    outbox = Outbox()
    outbox.more = lambda: [b"c", b"d"]
    outbox.put([b"a", b"b"])
    assert list(await outbox.take()) == [b"abcd"]
    outbox.ready.set()
    assert list(await outbox.take()) == [b"cd"]


async def test_a_closed_outbox_ends_the_stream_with_the_reason() -> None:
    outbox = Outbox()
    outbox.close(Unavailable("replaced"))
    with pytest.raises(Unavailable, match="replaced"):
        await outbox.take()


async def test_an_outbox_that_ends_is_written_to_the_end() -> None:
    written: list[bytes] = []

    class Stream:
        async def write(self, message: bytes) -> None:
            written.append(message)
            if message == b"a":
                outbox.put([b"b"])
                outbox.end()

    outbox = Outbox()
    outbox.put([b"a"])
    await asyncio.wait_for(outbox.write_to(Stream()), 60)
    assert written == [b"a", b"b"]


@given(st.lists(st.integers(1, 3 * MESSAGE_BYTES // 2), max_size=8))
def test_messages_are_bounded_unless_a_single_part_is_larger(sizes: list[int]) -> None:
    parts = [bytes(size) for size in sizes]
    found = list(messages(parts))
    assert b"".join(found) == b"".join(parts)
    assert all(len(message) <= MESSAGE_BYTES or len(message) in sizes for message in found)


async def test_what_follows_a_break_leaves_in_a_message_of_its_own() -> None:
    outbox = Outbox()
    outbox.put([b"a", b"b", BREAK])
    outbox.put([b"c"])
    assert list(await outbox.take()) == [b"ab", b"c"]


async def test_a_reader_that_leaves_too_much_unread_is_told_so_and_costs_no_more() -> None:
    outbox = Outbox()
    part = bytes(MAX_WAITING_BYTES // 4)
    for _ in range(9):
        outbox.put([part])
    assert outbox._parts == []
    with pytest.raises(ResourceExhausted, match="bytes wait to be read") as caught:
        await outbox.take()
    assert caught.value.reason == "READER_TOO_SLOW"
