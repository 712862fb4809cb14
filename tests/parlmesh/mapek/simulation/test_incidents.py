"""Planners by their time to recovery."""

import pytest

from parlmesh.mapek.simulation.incidents import compare


def test_over_two_hundred_incidents_recovery_is_a_third_shorter_and_nothing_forbidden_is_done():
    for row in compare((0, 1, 2)):
        assert row["shorter"] >= 0.3, row
        assert row["policy_shorter"] >= 0.3, row
        assert row["forbidden"] == 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_where_the_cause_shows_in_metrics_only_a_trained_policy_tells_it(seed):
    [row] = compare((seed,), by_cause=True)
    assert row["policy_shorter"] >= 0.3
    assert row["policy_shorter"] > row["shorter"] + 0.1, "counting by symptom and context sees no cause"
    assert row["forbidden"] == 0
