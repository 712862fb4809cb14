import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from actor.config import LimitsConfig
from actor.learner.policy_cache import HeldPolicy, PolicyCache
from actor.metrics import ActorMetrics
from parlmesh.distribution.policy_download import PolicyDownload, policy_stub
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, InvalidInput, NotFound, ResourceExhausted, Unavailable
from parlmesh.rpc import open_channel
from parlmesh.testing import HandClock, serve, wait_until_async
from parlmesh.testing.fleet import FakeLearner

_RUN = "run-1"
_LONG = 10.0


@dataclass
class Cached:
    learner: FakeLearner
    policies: PolicyCache
    metrics: ActorMetrics
    clock: HandClock
    decoded: list[bytes] = field(default_factory=list)

    def count(self, result: str) -> float:
        value: float = self.metrics.policy_fetches.labels(result)._value.get()
        return value


def _bytes(held: HeldPolicy) -> object:
    """Policies are decoded to themselves here."""
    return held.policy


@asynccontextmanager
async def _cached(**limits: Any) -> AsyncIterator[Cached]:
    decoded: list[bytes] = []

    def decode(data: bytes) -> Any:
        if data == b"nonsense":
            raise InvalidInput("not a policy")
        if data == b"surprise":
            raise KeyError("a layer that nobody thought of")
        decoded.append(data)
        return data

    learner, metrics, clock = FakeLearner(), ActorMetrics(CollectorRegistry()), HandClock()
    async with serve(learner.services) as address, open_channel(address) as channel:
        policies = PolicyCache(
            policy_stub(channel),
            decode,
            limits=LimitsConfig(**{"reconnect_seconds": 0.02} | limits),
            metrics=metrics,
            rng=random.Random(0),
            clock=clock,
        )
        async with policies:
            yield Cached(learner, policies, metrics, clock, decoded)


async def test_the_newest_version_is_fetched_and_followed() -> None:
    async with _cached() as cached:
        await cached.learner.publish(_RUN, 1, b"one")
        assert cached.policies.newest(_RUN) is None
        first = await cached.policies.get(_RUN, 1, _LONG)
        assert (first.version, _bytes(first)) == (1, b"one")
        await cached.learner.publish(_RUN, 2, b"two")
        second = await cached.policies.get(_RUN, 2, _LONG)
        assert second.version == 2
        assert cached.policies.newest(_RUN) is second
        assert cached.policies.newest_version == 2
        assert cached.learner.fetches[-1].have_version == 1
        assert cached.metrics.policy_version._value.get() == 2


async def test_a_version_is_decoded_once() -> None:
    async with _cached() as cached:
        await cached.learner.publish(_RUN, 1, b"one")
        first = await asyncio.gather(*(cached.policies.get(_RUN, 1, _LONG) for _ in range(5)))
        assert await cached.policies.get_exact(_RUN, 1, _LONG) is first[0]
        assert cached.decoded == [b"one"]


async def test_a_large_policy_comes_in_chunks() -> None:
    async with _cached() as cached:
        data = random.Random(0).randbytes(700_000)
        await cached.learner.publish(_RUN, 1, data)
        held = await cached.policies.get(_RUN, 1, _LONG)
        assert _bytes(held) == data
        assert cached.metrics.policy_bytes._value.get() == len(data)


async def test_who_waits_for_a_later_version_gets_it_when_it_comes() -> None:
    async with _cached() as cached:
        await cached.learner.publish(_RUN, 1, b"one")
        await cached.policies.get(_RUN, 1, _LONG)
        waiting = asyncio.create_task(cached.policies.get(_RUN, 3, _LONG))
        await cached.learner.publish(_RUN, 2, b"two")
        await wait_until_async(lambda: cached.policies.newest_version == 2, 60.0)
        assert not waiting.done()
        await cached.learner.publish(_RUN, 3, b"three")
        assert (await waiting).version == 3


async def test_a_version_that_does_not_come_in_time_is_named() -> None:
    async with _cached() as cached:
        await cached.learner.publish(_RUN, 1, b"one")
        await cached.policies.get(_RUN, 1, _LONG)
        with pytest.raises(DeadlineExceeded, match=r"version 2 of run 'run-1' did not come .* the newest here is 1"):
            await cached.policies.get(_RUN, 2, 0.02)


async def test_the_watch_is_taken_up_again_after_the_learner_was_away() -> None:
    async with _cached() as cached:
        await cached.learner.publish(_RUN, 1, b"one")
        await cached.policies.get(_RUN, 1, _LONG)
        cached.learner.break_streams()
        await cached.learner.publish(_RUN, 2, b"two")
        assert _bytes(await cached.policies.get(_RUN, 2, _LONG)) == b"two"


async def test_a_version_that_goes_backwards_is_refused() -> None:
    async with _cached() as cached:
        await cached.learner.publish(_RUN, 5, b"five")
        await cached.policies.get(_RUN, 5, _LONG)
        await cached.learner.publish(_RUN, 3, b"three")
        await wait_until_async(lambda: cached.count("refused") == 1, 60.0)
        held = cached.policies.newest(_RUN)
        assert held is not None
        assert held.version == 5


async def test_a_run_that_was_begun_anew_under_its_id_is_taken_for_what_it_is() -> None:
    async with _cached() as cached:
        cached.learner.run_uids[_RUN] = "old"
        await cached.learner.publish(_RUN, 5, b"five")
        assert (await cached.policies.get(_RUN, 5, _LONG)).run_uid == "old"
        late = asyncio.create_task(cached.policies.get(_RUN, 9, _LONG, "old"))
        early = asyncio.create_task(cached.policies.get(_RUN, 1, _LONG, "new"))
        await asyncio.sleep(0)
        assert not early.done(), "version 5 is of another run"
        cached.learner.run_uids[_RUN] = "new"
        await cached.learner.publish(_RUN, 1, b"one")
        held = await early
        assert (held.version, held.run_uid, _bytes(held)) == (1, "new", b"one")
        with pytest.raises(Unavailable, match="run 'run-1' was started again"):
            await late
        assert cached.policies.newest(_RUN) is held
        assert cached.count("refused") == 0


@pytest.mark.parametrize("version", [3, 5])
async def test_a_learner_whose_memory_went_back_is_believed_when_it_comes_back(version: int) -> None:
    async with _cached() as cached:
        await cached.learner.publish(_RUN, 5, b"five")
        await cached.policies.get(_RUN, 5, _LONG)
        await cached.learner.publish_anew(_RUN, version, b"other")
        cached.learner.break_streams()

        async def held() -> bool:
            newest = cached.policies.newest(_RUN)
            return newest is not None and (newest.version, _bytes(newest)) == (version, b"other")

        await wait_until_async(held, 60.0)


async def test_the_same_version_with_other_bytes_is_refused() -> None:
    async with _cached() as cached:
        await cached.learner.publish(_RUN, 5, b"five")
        await cached.policies.get(_RUN, 5, _LONG)
        await cached.learner.publish(_RUN, 5, b"other")
        await wait_until_async(lambda: cached.count("refused") == 1, 60.0)
        assert cached.decoded == [b"five"]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"?" + data[1:]])
async def test_a_damaged_policy_is_never_used_and_fetched_again(damage: Any) -> None:
    async with _cached() as cached:
        cached.learner.damage = damage
        await cached.learner.publish(_RUN, 1, b"policy")
        waiting = asyncio.create_task(cached.policies.get(_RUN, 1, _LONG))
        await wait_until_async(lambda: cached.count("corrupt") >= 1, 60.0)
        assert cached.decoded == []
        cached.learner.damage = lambda data: data
        assert _bytes(await waiting) == b"policy"


@pytest.mark.parametrize("data", [b"nonsense", b"surprise"])
async def test_a_policy_that_cannot_be_decoded_waits_for_the_next(data: bytes) -> None:
    async with _cached() as cached:
        await cached.learner.publish(_RUN, 1, data)
        waiting = asyncio.create_task(cached.policies.get(_RUN, 1, _LONG))
        await wait_until_async(lambda: cached.count("corrupt") >= 1, 60.0)
        await cached.learner.publish(_RUN, 2, b"two")
        assert (await waiting).version == 2


async def test_an_exact_version_that_cannot_be_loaded_costs_who_asked_alone() -> None:
    async with _cached() as cached:
        await cached.learner.publish(_RUN, 1, b"surprise")
        await cached.learner.publish(_RUN, 2, b"two")
        with pytest.raises(FailedPrecondition, match="policy version 1 of run 'run-1' cannot be used: KeyError"):
            await cached.policies.get_exact(_RUN, 1, _LONG)
        assert (await cached.policies.get(_RUN, 2, _LONG)).version == 2


async def test_whatever_a_watch_meets_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str] = []
    whole = PolicyDownload.add

    def add(self: PolicyDownload, message: bytes) -> None:
        if not met:
            met.append("once")
            raise RuntimeError("as nobody expected")
        whole(self, message)

    monkeypatch.setattr(PolicyDownload, "add", add)
    async with _cached() as cached:
        await cached.learner.publish(_RUN, 1, b"one")
        assert (await cached.policies.get(_RUN, 1, _LONG)).version == 1
        assert met == ["once"]


async def test_a_policy_that_is_too_large_is_not_fetched() -> None:
    async with _cached(policy_bytes=1024) as cached:
        await cached.learner.publish(_RUN, 1, b"x" * 2000)
        with pytest.raises(ResourceExhausted, match=r"2000 bytes; the limit is 1024 \(limits\.policy_bytes\)"):
            await cached.policies.get_exact(_RUN, 1, _LONG)


async def test_an_older_version_can_be_had_while_the_learner_keeps_it() -> None:
    async with _cached() as cached:
        for version, data in ((1, b"one"), (2, b"two"), (3, b"three")):
            await cached.learner.publish(_RUN, version, data)
        await cached.policies.get(_RUN, 3, _LONG)
        assert _bytes(await cached.policies.get_exact(_RUN, 1, _LONG)) == b"one"
        assert _bytes(await cached.policies.get_exact(_RUN, 2, _LONG)) == b"two"
        newest = cached.policies.newest(_RUN)
        assert newest is not None
        assert newest.version == 3
        with pytest.raises(NotFound, match="no version 9"):
            await cached.policies.get_exact(_RUN, 9, _LONG)


async def test_versions_that_were_asked_for_are_kept_within_a_limit_and_the_newest_whatever_it_weighs() -> None:
    async with _cached(held_policy_bytes=1 << 10) as cached:
        for version in (1, 2, 3, 4):
            await cached.learner.publish(_RUN, version, bytes([version]) * 700)
        await cached.policies.get(_RUN, 4, _LONG)
        await cached.policies.get_exact(_RUN, 1, _LONG)
        await cached.policies.get_exact(_RUN, 2, _LONG)
        fetches = len(cached.learner.fetches)
        await cached.policies.get_exact(_RUN, 4, _LONG)
        await cached.policies.get_exact(_RUN, 2, _LONG)
        assert len(cached.learner.fetches) == fetches
        await cached.policies.get_exact(_RUN, 1, _LONG)
        assert len(cached.learner.fetches) == fetches + 1


async def test_a_reset_forgets_every_policy_and_tells_who_waits() -> None:
    async with _cached() as cached:
        await cached.learner.publish(_RUN, 5, b"five")
        await cached.policies.get(_RUN, 5, _LONG)
        waiting = asyncio.create_task(cached.policies.get(_RUN, 6, _LONG))
        await asyncio.sleep(0)
        cached.policies.reset()
        with pytest.raises(Unavailable, match="were dropped"):
            await waiting
        assert cached.policies.newest(_RUN) is None
        await cached.learner.publish(_RUN, 3, b"three")
        assert (await cached.policies.get(_RUN, 1, _LONG)).version == 3


async def test_no_more_than_four_runs_are_followed() -> None:
    async with _cached() as cached:
        for index in range(5):
            await cached.learner.publish(f"run-{index}", 1, b"one")
            cached.clock.advance(1.0)
            await cached.policies.get(f"run-{index}", 1, _LONG)
        assert cached.policies.newest("run-0") is None
        assert all(cached.policies.newest(f"run-{index}") for index in range(1, 5))


async def test_a_run_that_nobody_asks_for_is_forgotten_when_its_stream_breaks() -> None:
    async with _cached() as cached:
        await cached.learner.publish(_RUN, 1, b"one")
        await cached.policies.get(_RUN, 1, _LONG)
        cached.clock.advance(61.0)
        cached.learner.break_streams()
        await wait_until_async(lambda: _RUN not in cached.policies._runs, 60.0)
