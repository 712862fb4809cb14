import pytest

from parlmesh.token_bucket import BURST_SECONDS, MOST_NAMES, Rates


def test_ten_seconds_worth_may_come_at_once_and_the_rest_in_time() -> None:
    rates: Rates[str] = Rates(2.0)
    for _ in range(int(2.0 * BURST_SECONDS)):
        assert rates.wait("a", 100.0) == 0.0
        rates.take("a", 100.0)
    assert rates.wait("a", 100.0) == pytest.approx(0.5)
    assert rates.wait("b", 100.0) == 0.0
    assert rates.wait("a", 100.5) == 0.0
    # A clock that went back adds nothing.
    assert rates.wait("a", 99.0) == pytest.approx(0.5)


def test_what_is_larger_than_a_bucket_waits_for_a_full_one_and_never_for_ever() -> None:
    rates: Rates[str] = Rates(1.0)
    assert rates.wait("a", 0.0, 1000.0) == 0.0
    rates.take("a", 0.0, 1000.0)
    assert rates.wait("a", 0.0, 1000.0) == pytest.approx(BURST_SECONDS)
    assert rates.wait("a", BURST_SECONDS, 1000.0) == 0.0


def test_a_rate_below_one_in_ten_seconds_still_lets_one_through() -> None:
    rates: Rates[str] = Rates(0.01)
    assert rates.wait("a", 0.0) == 0.0
    rates.take("a", 0.0)
    assert rates.wait("a", 0.0) == pytest.approx(100.0)


def test_those_who_were_not_seen_for_long_are_forgotten() -> None:
    rates: Rates[int] = Rates(1.0)
    for name in range(MOST_NAMES + 5):
        rates.take(name, 0.0, 10.0)
    assert rates.wait(0, 0.0) == 0.0
    assert rates.wait(MOST_NAMES, 0.0) > 0.0
