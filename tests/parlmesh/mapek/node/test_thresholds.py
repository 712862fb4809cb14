"""Hysteresis and noise, without a fleet."""

import random

import pytest

from parlmesh.mapek.config import MapekConfig, ThresholdConfig
from parlmesh.mapek.node.thresholds import STEADY, next_state
from parlmesh.mapek.planning.arbiter import Arbiter

THRESHOLD = ThresholdConfig(metric="cpu_percent", above=80, clear=65)


def _symptoms(values, threshold=THRESHOLD):
    state: dict[str, object] = {}
    found = []
    for value in values:
        state, symptom = next_state(threshold, threshold.metric, value, state)
        found.append(symptom)
    return found


def test_a_symptom_begins_at_the_level_and_ends_after_three_readings_below_the_clear_level():
    found = _symptoms([79, 80, 70, 60, 60, 66, 60, 60, 60])
    assert [each is not None for each in found] == [False, True, True, True, True, True, True, True, False]
    assert found[1].fresh
    assert not found[2].fresh
    assert not found[2].present


def test_a_level_below_which_nothing_should_fall_is_the_mirror_image():
    found = _symptoms([5, 1, 3, 5, 5, 5], ThresholdConfig(metric="free", below=2, clear=4))
    assert [each is not None for each in found] == [False, True, True, True, True, False]


def test_a_symptom_may_need_several_readings_in_a_row():
    found = _symptoms([90, 10, 90, 90], ThresholdConfig(metric="x", above=80, cycles=2))
    assert [each is not None for each in found] == [False, False, False, True]


@pytest.mark.parametrize("deviation", [1, 4, 8, 20, 40])
@pytest.mark.parametrize("seed", range(20))
def test_noise_around_the_level_gets_one_action_in_a_hundred_readings_at_most(seed, deviation):
    rng = random.Random(seed)
    config = MapekConfig.model_validate(
        {
            "thresholds": [THRESHOLD.model_dump()],
            "rules": [{"symptom": "cpu_percent", "actions": ["mend"], "cooldown_seconds": 1}],
            "actions": {"mend": {"kind": "dry_run"}},
        }
    )
    arbiter, actions = Arbiter(config), 0
    rule = config.rules[0]
    for time, symptom in enumerate(_symptoms([rng.gauss(80, deviation) for _ in range(100)])):
        if symptom is not None and not arbiter.held("node", symptom, rule, 60.0 * time):
            arbiter.ended("node", rule, "mend", True, 60.0 * time)
            actions += 1
    assert actions <= 1


def test_a_fault_that_stays_is_acted_on_again():
    found = _symptoms([95] * (STEADY + 1))
    assert found[0].fresh
    assert not found[STEADY - 2].steady
    assert found[STEADY].steady
    assert not found[STEADY].flapping
