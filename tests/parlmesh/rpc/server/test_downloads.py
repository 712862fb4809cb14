import asyncio
from contextlib import AsyncExitStack

from parlmesh.rpc.caller_identity import set_caller
from parlmesh.rpc.server import downloads
from parlmesh.rpc.server.downloads import MOST_BYTES, Downloads
from parlmesh.security import ANYONE, Identity, Role

HALF = MOST_BYTES // 2


async def started(found: Downloads, identity: Identity, size: int, order: list[str], name: str) -> asyncio.Task[None]:
    async def run() -> None:
        set_caller(identity)
        async with found.place(size):
            order.append(name)
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    for _ in range(3):
        await asyncio.sleep(0)
    return task


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_is_on_its_way_to_one_caller_is_bounded_and_others_do_not_wait() -> None:
    found, order = Downloads(), list[str]()
    ada, bob = Identity("ada", Role.ACTOR), Identity("bob", Role.READER)
    first = await started(found, ada, HALF, order, "first")
    second = await started(found, ada, HALF, order, "second")
    third = await started(found, ada, 1, order, "third")
    other = await started(found, bob, HALF, order, "other")
    # The third would fit, and comes after the second.
    assert order == ["first", "other"]
    await ended(first)
    assert order == ["first", "other", "second", "third"]
    for task in (second, third, other):
        await ended(task)
    assert found._places == {}


async def test_a_large_answer_goes_alone_and_a_caller_that_leaves_the_queue_delays_nobody() -> None:
    found, order, ada = Downloads(), list[str](), Identity("ada", Role.ACTOR)
    large = await started(found, ada, 10 * MOST_BYTES, order, "large")
    leaves = await started(found, ada, 10 * MOST_BYTES, order, "leaves")
    small = await started(found, ada, 1, order, "small")
    assert order == ["large"]
    await ended(leaves)
    assert order == ["large"]
    await ended(large)
    assert order == ["large", "small"]
    await ended(small)
    assert found._places == {}


async def test_operators_of_the_fleet_and_callers_without_security_never_wait() -> None:
    found = Downloads()
    for identity in (ANYONE, Identity("eve", Role.OPERATOR)):
        set_caller(identity)
        async with AsyncExitStack() as stack:
            for _ in range(100):
                await stack.enter_async_context(found.place(MOST_BYTES))
    assert downloads.MOST_BYTES == 64 << 20
