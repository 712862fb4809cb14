"""Closed, open, half open."""

from parlmesh.mapek.config import BreakerConfig
from parlmesh.mapek.planning.circuit_breaker import Breaker


def test_five_failures_in_a_row_open_it_for_a_minute_and_three_good_probes_close_it():
    breaker = Breaker(BreakerConfig())
    for _ in range(4):
        breaker.end(False, 0.0)
    breaker.end(True, 0.0)
    for _ in range(5):
        assert breaker.allows(0.0)
        breaker.end(False, 0.0)
    assert not breaker.allows(59.0)
    for _ in range(3):
        assert breaker.allows(60.0)
        breaker.begin()
    assert not breaker.allows(60.0), "three probes, not more"
    for _ in range(3):
        breaker.end(True, 61.0)
    assert not breaker.tripped


def test_a_failed_probe_opens_it_again():
    breaker = Breaker(BreakerConfig(failures=1))
    breaker.end(False, 0.0)
    breaker.begin()
    breaker.end(False, 60.0)
    assert not breaker.allows(119.0)
    assert breaker.allows(120.0)
