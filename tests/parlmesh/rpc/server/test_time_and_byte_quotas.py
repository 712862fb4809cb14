import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from parlmesh.errors import ResourceExhausted
from parlmesh.rpc.server.time_and_byte_quotas import Account, Accounts, Bucket, metered, paced, set_account, take_bytes
from parlmesh.security import ANYONE, Identity, Role
from parlmesh.security.quotas import QuotaConfig

MALLORY = Identity("mallory", Role.ACTOR)
QUOTAS = QuotaConfig(bytes_per_second=1000.0, loop_share=0.5)


class Clock:
    """Advances only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def _no_account_left() -> Iterator[None]:
    yield
    set_account(None)


def account(clock: Clock | None = None) -> Account:
    accounts = Accounts(QUOTAS) if clock is None else Accounts(QUOTAS, clock, clock.sleep)
    found = accounts.open(MALLORY)
    assert found is not None
    set_account(found)
    return found


async def ten() -> AsyncIterator[int]:
    for number in range(10):
        yield number


def test_a_bucket_holds_one_second_s_worth_and_pays_its_debt_in_time() -> None:
    bucket = Bucket(10.0, 0.0)
    bucket.take(10.0, 100.0)
    assert bucket.debt_seconds(100.0) == 0.0
    bucket.take(5.0, 100.0)
    assert bucket.debt_seconds(100.0) == pytest.approx(0.5)
    assert bucket.debt_seconds(100.5) == pytest.approx(0.0)


def test_operators_are_not_paced_and_accounts_are_kept_by_identity() -> None:
    accounts = Accounts(QUOTAS)
    assert accounts.open(ANYONE) is None
    assert accounts.open(Identity("ada", Role.OPERATOR)) is None
    assert accounts.open(MALLORY) is accounts.open(Identity("mallory", Role.ACTOR))
    assert accounts.open(MALLORY) is not accounts.open(Identity("eve", Role.READER))


def test_operators_of_a_namespace_share_one_account_with_a_share_of_their_own() -> None:
    accounts = Accounts(QUOTAS)
    ada, bob = (Identity(name, Role.OPERATOR, "team-a") for name in ("ada", "bob"))
    account = accounts.open(ada)
    assert account is not None
    assert account is accounts.open(bob)
    assert account is not accounts.open(Identity("ada", Role.OPERATOR, "team-b"))
    assert account is not accounts.open(Identity("ada", Role.READER, "team-a"))


async def test_a_stream_is_read_no_faster_than_its_bytes_allow_and_nothing_is_lost(clock: Clock) -> None:
    account(clock)
    got = []
    async for number in paced(ten()):
        take_bytes(1000)
        got.append(number)
    assert got == list(range(10))
    assert clock.now == pytest.approx(109.0, abs=0.1)


async def test_messages_are_read_for_an_account_and_left_alone_without_one(clock: Clock) -> None:
    messages = ten()
    assert paced(messages, str) is messages
    account(clock)
    assert [message async for message in paced(messages, str)] == [str(number) for number in range(10)]


async def test_streams_of_one_identity_share_its_part_of_the_loop(clock: Clock) -> None:
    spent = account(clock)

    async def stream() -> None:
        async for _ in paced(ten()):
            spent.take_seconds(0.1)

    await asyncio.gather(*(stream() for _ in range(5)))
    # 50 messages of 0.1 s at half the loop's time, the first half second free.
    assert clock.now - 100.0 >= 8.0


async def test_a_single_call_waits_a_little_and_is_refused_beyond_that(clock: Clock) -> None:
    spent = account(clock)
    spent.take_seconds(0.75)
    await spent.admit_call()
    assert clock.now == pytest.approx(100.5)
    take_bytes(5000)
    with pytest.raises(ResourceExhausted, match="actor mallory has taken more than its share") as error:
        await spent.admit_call()
    assert error.value.reason == "TOO_MUCH_WORK"
    assert error.value.retry_after_seconds == pytest.approx(4.0, abs=0.6)


async def test_work_pays_for_the_time_it_holds_the_loop_and_for_no_other() -> None:
    spent = account()
    took: list[float] = []
    spent.take_seconds = took.append  # type: ignore[method-assign, assignment]

    def busy(seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    async def work() -> str:
        busy(0.02)
        # Another task holds the loop meanwhile.
        await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.0)
        await asyncio.create_task(others())
        return "done"

    async def others() -> None:
        busy(0.05)

    assert await metered(work()) == "done"
    assert 0.02 <= sum(took) < 0.05


async def test_metered_work_can_be_cancelled_and_may_fail() -> None:
    account()
    cleaned = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    task = asyncio.create_task(metered(waits()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == [True]
    with pytest.raises(ValueError, match="no"):
        await metered(fails())
