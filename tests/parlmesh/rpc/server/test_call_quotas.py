import asyncio

import pytest

from parlmesh.errors import PermissionDenied, ResourceExhausted
from parlmesh.rpc.server import call_quotas as module
from parlmesh.rpc.server.call_quotas import Quotas
from parlmesh.security import ANYONE, Identity, Role
from parlmesh.security.authorisation import UNKNOWN
from parlmesh.security.quotas import QuotaConfig
from parlmesh.testing import HandClock

EVE = Identity("eve", Role.READER)


def test_refusals_are_counted_by_identity_and_forgiven_in_time() -> None:
    clock = HandClock()
    quotas = Quotas(QuotaConfig(refusals_per_second=1.0), clock)
    for _ in range(10):
        quotas.count_call(EVE)
        quotas.count_refusal(EVE)
    with pytest.raises(ResourceExhausted, match=r"reader eve had more than 1 calls a second refused") as error:
        quotas.count_call(EVE)
    assert error.value.reason == "TOO_MANY_REFUSALS"
    assert error.value.retry_after_seconds >= 1.0
    quotas.count_call(Identity("ada", Role.READER))
    clock.advance(1.0)
    quotas.count_call(EVE)


async def test_after_a_message_that_was_too_large_no_other_is_read_for_a_while() -> None:
    clock = HandClock()
    quotas = Quotas(QuotaConfig(unread_calls=1), clock)
    first = await quotas.wait_to_be_read(EVE)
    assert first is not None
    waiting = asyncio.ensure_future(quotas.wait_to_be_read(EVE))
    await asyncio.sleep(0)
    quotas.leave_unread(EVE)
    first()
    for call in (waiting, quotas.wait_to_be_read(EVE)):
        with pytest.raises(ResourceExhausted, match="no unary call of it is read for 10 s") as error:
            await call
        assert error.value.reason == "MESSAGE_TOO_LARGE"
    other = await quotas.wait_to_be_read(Identity("ada", Role.READER))
    assert other is not None
    clock.advance(10.0)
    assert await quotas.wait_to_be_read(EVE) is not None
    # Operators may send anything.
    quotas.leave_unread(Identity("root", Role.OPERATOR))
    assert await quotas.wait_to_be_read(Identity("root", Role.OPERATOR)) is None


def test_callers_without_a_name_are_not_counted() -> None:
    quotas = Quotas(QuotaConfig(refusals_per_second=0.1, calls_per_second=0.1), HandClock())
    for _ in range(50):
        for identity in (ANYONE, UNKNOWN):
            quotas.count_call(identity)
            quotas.count_refusal(identity)


async def test_few_of_those_who_come_too_often_wait_and_the_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_HOLD_SECONDS", 3600.0)
    quotas = Quotas(QuotaConfig(), HandClock())
    error = ResourceExhausted("too often", reason="TOO_MANY_CALLS", identity=EVE)
    held = [asyncio.ensure_future(quotas.hold(error)) for _ in range(20)]
    await asyncio.sleep(0)
    # The others queue; the first of them is answered at once.
    assert sum(not one.done() for one in held) == 16 + 3
    for one in held:
        one.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    again = asyncio.ensure_future(quotas.hold(error))
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()


async def test_refusals_of_one_identity_are_answered_one_after_the_other_and_those_of_others_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_BREATH_SECONDS", 3600.0)
    clock = HandClock()
    quotas = Quotas(QuotaConfig(), clock)
    refusals = [PermissionDenied("no", reason="ROLE_NOT_ALLOWED", identity=name) for name in ("eve", "bob")]
    eves = [asyncio.ensure_future(quotas.hold(refusals[0])) for _ in range(3)]
    await asyncio.sleep(0)
    assert [one.done() for one in eves] == [True, False, False]
    await quotas.hold(refusals[1])
    # The queue empties, and a later caller is answered at once again.
    crowd = [asyncio.ensure_future(quotas.hold(refusals[0])) for _ in range(200)]
    await asyncio.sleep(0)
    assert 0 < sum(one.done() for one in crowd) < 100
    clock.advance(3600.0 * 200)
    await quotas.hold(refusals[0])
    for one in [*eves, *crowd]:
        one.cancel()


async def test_an_operator_of_a_namespace_is_read_as_other_strangers_are() -> None:
    quotas, team = Quotas(QuotaConfig(unread_calls=1)), Identity("ada", Role.OPERATOR, "team-a")
    first = await quotas.wait_to_be_read(team)
    assert first is not None
    waiting = asyncio.ensure_future(quotas.wait_to_be_read(team))
    await asyncio.sleep(0)
    assert not waiting.done()
    first()
    second = await waiting
    assert second is not None
    second()
