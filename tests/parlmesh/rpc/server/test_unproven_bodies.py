import asyncio
from collections.abc import Awaitable, Callable

import pytest

from parlmesh.errors import DeadlineExceeded, InvalidInput, ResourceExhausted
from parlmesh.rpc.server.unproven_bodies import LARGEST_BODY_BYTES, MOST_WAITING, Bodies


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, no sender counts as too slow."""
    monkeypatch.setattr("parlmesh.rpc.server.unproven_bodies._PATIENCE_WHEN_BUSY_SECONDS", 60.0)
    monkeypatch.setattr("parlmesh.rpc.server.unproven_bodies._PATIENCE_SECONDS", 120.0)


def body(data: bytes = b"x", after: asyncio.Event | None = None) -> Callable[[], Awaitable[bytes]]:
    async def read() -> bytes:
        if after is not None:
            await after.wait()
        return data

    return read


async def held(bodies: Bodies) -> tuple["asyncio.Task[bytes]", asyncio.Event]:
    """A sender that is being read, and does not finish before the event."""
    event = asyncio.Event()
    slow = asyncio.create_task(bodies.read(body(b"slow", event), "slow"))
    await asyncio.sleep(0)
    return slow, event


async def test_a_body_is_read() -> None:
    assert await Bodies().read(body(b"abc"), "peer") == b"abc"


async def test_a_large_body_is_refused_by_name_and_makes_room() -> None:
    bodies = Bodies()
    with pytest.raises(InvalidInput, match=f"{LARGEST_BODY_BYTES + 1} bytes is too large"):
        await bodies.read(body(bytes(LARGEST_BODY_BYTES + 1)), "peer")
    assert await bodies.read(body(b"next"), "other") == b"next"


@pytest.mark.parametrize("refused_stream", [False, True])
async def test_a_connection_that_sent_too_much_is_not_read_for_a_while(refused_stream: bool) -> None:
    now = [100.0]
    bodies, large = Bodies(lambda: now[0]), body(bytes(LARGEST_BODY_BYTES + 1))
    if refused_stream:
        await bodies.discard_first(large, "peer")
    else:
        with pytest.raises(InvalidInput, match="too large"):
            await bodies.read(large, "peer")
    with pytest.raises(InvalidInput, match="nothing of it is read here for 10 s"):
        await bodies.read(body(b"next"), "peer")
    now[0] += 11.0
    assert await bodies.read(body(b"next"), "peer") == b"next"


async def test_a_slow_sender_gives_way_as_soon_as_somebody_waits() -> None:
    bodies = Bodies()
    slow, _ = await held(bodies)
    assert await bodies.read(body(b"probe"), "peer") == b"probe"
    with pytest.raises(DeadlineExceeded):
        await slow


@pytest.mark.usefixtures("patient")
async def test_a_slow_sender_alone_is_waited_for() -> None:
    bodies = Bodies()
    slow, event = await held(bodies)
    event.set()
    assert await slow == b"slow"


@pytest.mark.usefixtures("patient")
async def test_the_newest_is_read_first() -> None:
    bodies, order = Bodies(), []
    slow, event = await held(bodies)

    async def note(name: str) -> None:
        await bodies.read(body(), "peer")
        order.append(name)

    waiting = [asyncio.create_task(note(name)) for name in ("first", "second", "third")]
    await asyncio.sleep(0)
    event.set()
    await asyncio.gather(*waiting, slow)
    assert order == ["third", "second", "first"]


@pytest.mark.usefixtures("patient")
async def test_when_too_many_wait_the_oldest_is_sent_away() -> None:
    bodies = Bodies()
    slow, event = await held(bodies)
    waiting = [asyncio.create_task(bodies.read(body(), "peer")) for _ in range(MOST_WAITING + 1)]
    with pytest.raises(ResourceExhausted, match="too many calls without a credential"):
        await waiting[0]
    event.set()
    assert await asyncio.gather(slow, *waiting[1:]) == [b"slow"] + [b"x"] * MOST_WAITING


@pytest.mark.usefixtures("patient")
async def test_a_caller_that_leaves_while_waiting_frees_its_place() -> None:
    bodies = Bodies()
    slow, event = await held(bodies)
    leaving = asyncio.create_task(bodies.read(body(), "peer"))
    await asyncio.sleep(0)
    leaving.cancel()
    event.set()
    await asyncio.wait([slow, leaving])
    assert leaving.cancelled()
    assert await bodies.read(body(b"next"), "peer") == b"next"


@pytest.mark.usefixtures("patient")
async def test_a_refused_stream_s_first_message_is_taken_only_when_nobody_else_is_read() -> None:
    bodies, taken = Bodies(), []

    async def read() -> bytes:
        taken.append(True)
        return b""

    await bodies.discard_first(read, "peer")
    assert taken == [True]
    slow, event = await held(bodies)
    await bodies.discard_first(read, "peer")
    assert taken == [True]
    event.set()
    await slow
