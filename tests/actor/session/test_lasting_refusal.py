import pytest

from actor.session import lasting_refusal
from actor.session.lasting_refusal import LastingRefusal
from parlmesh.errors import PermissionDenied, Unauthenticated, Unavailable

EXPIRED = Unauthenticated("expired")


async def test_credentials_that_were_good_may_be_refused_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = LastingRefusal(lambda: "")
    await refusals.check(EXPIRED, was_connected=True)
    await refusals.check(PermissionDenied("not you"), was_connected=True)
    monkeypatch.setattr(lasting_refusal, "RENEWAL_SECONDS", 0.0)
    with pytest.raises(Unauthenticated, match="expired"):
        await refusals.check(EXPIRED, was_connected=True)


async def test_another_error_in_between_ends_the_refusal() -> None:
    refusals = LastingRefusal(lambda: "")
    refusals._refused_since = float("-inf")
    await refusals.check(Unavailable("gone"), was_connected=True)
    await refusals.check(EXPIRED, was_connected=True)


async def test_an_actor_that_never_got_through_asks_why_and_ends() -> None:
    refusals = LastingRefusal(lambda: "the certificate has expired")
    with pytest.raises(Unauthenticated, match="the certificate has expired") as caught:
        await refusals.check(Unavailable("no answer"), was_connected=False)
    assert caught.value.reason == "SECURITY"
    # Only every few seconds.
    await refusals.check(Unavailable("no answer"), was_connected=False)
