"""SWIM's managers in the published order, then ours."""

import pytest

from parlmesh.errors import InvalidInput
from parlmesh.mapek.simulation.swim import PERIODS, day, total_utility, traced


@pytest.mark.parametrize("boot_seconds", [0, 60, 120, 180, 240])
@pytest.mark.parametrize("seed", range(3))
def test_reactive_beats_reactive2_and_the_predictive_manager_beats_both(seed, boot_seconds):
    ours, reactive, reactive2 = (
        total_utility(name, day(seed), boot_seconds, seed) for name in ("predictive", "reactive", "reactive2")
    )
    assert ours > reactive > reactive2


def test_a_trace_of_seconds_between_requests_is_read_as_rates(tmp_path):
    file = tmp_path / "trace.delta"
    file.write_text("0.5\n" * 240)
    rates = traced(file)
    assert len(rates) == PERIODS
    assert rates[0] == pytest.approx(2.0, abs=0.02)
    assert rates[2:] == [pytest.approx(1 / 60, abs=1e-9), *[0.0] * (PERIODS - 3)]
    file.write_text("soon\n")
    with pytest.raises(InvalidInput, match="no trace of seconds"):
        traced(file)
