"""The learned planner against the fixed rules."""

from parlmesh.mapek.simulation.incidents import compare


def test_over_two_hundred_incidents_recovery_is_a_third_shorter_and_nothing_forbidden_is_done():
    for row in compare((0, 1, 2), incidents=200):
        assert row["shorter"] >= 0.3
        assert row["forbidden"] == 0
