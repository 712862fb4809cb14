"""SWIM's managers in the published order, then ours."""

import pytest

from parlmesh.errors import InvalidInput
from parlmesh.mapek.simulation.swim import MANAGERS, PERIODS, day, total_utility, traced
from parlmesh.mapek.simulation.swim_planner import LearnedManager, taught


@pytest.mark.parametrize("boot_seconds", [0, 60, 120, 180, 240])
@pytest.mark.parametrize("seed", range(3))
def test_reactive_beats_reactive2_and_the_predictive_manager_beats_both(seed, boot_seconds):
    sized, reactive, reactive2 = (
        total_utility(MANAGERS[name], day(seed), boot_seconds, seed) for name in ("predictive", "reactive", "reactive2")
    )
    assert sized > reactive > reactive2


@pytest.mark.parametrize("boot_seconds", [60, 240])
def test_the_loops_planner_beats_reactive_with_its_own_actions_on_loads_it_has_not_seen(boot_seconds):
    known = taught(boot_seconds)
    learned = [total_utility(LearnedManager(k, dict(known)), day(k), boot_seconds, k) for k in range(5)]
    reactive = [total_utility(MANAGERS["reactive"], day(k), boot_seconds, k) for k in range(5)]
    assert sum(learned) > 1.05 * sum(reactive)


def test_a_trace_of_seconds_between_requests_is_read_as_rates(tmp_path):
    file = tmp_path / "trace.delta"
    file.write_text("0.5\n" * 240)
    rates = traced(file)
    assert len(rates) == PERIODS
    assert rates[0] == pytest.approx(2.0, abs=0.02)
    assert rates[2:] == [pytest.approx(1 / 60, abs=1e-9), *[0.0] * (PERIODS - 3)]
    file.write_text("soon\n")
    with pytest.raises(InvalidInput, match="not a trace of seconds"):
        traced(file)
