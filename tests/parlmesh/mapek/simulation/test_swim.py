"""SWIM's managers in the published order, then ours."""

import pytest

from parlmesh.mapek.simulation.swim import day, total_utility


@pytest.mark.parametrize("boot_seconds", [0, 60, 120, 180, 240])
@pytest.mark.parametrize("seed", range(3))
def test_reactive_beats_reactive2_and_the_predictive_manager_beats_both(seed, boot_seconds):
    ours, reactive, reactive2 = (
        total_utility(name, day(seed), boot_seconds, seed) for name in ("predictive", "reactive", "reactive2")
    )
    assert ours > reactive > reactive2
