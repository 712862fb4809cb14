"""Streaming detectors: states that survive, bounded memory, no look-ahead."""

import json
import math
import random

import pytest

from parlmesh.mapek.detection import DETECTORS, Watch


def _series(count, seed=0):
    rng = random.Random(seed)
    return [(300.0 * number, 10 + 3 * math.sin(number / 46) + rng.gauss(0, 0.5)) for number in range(count)]


@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_a_detector_that_was_stored_goes_on_exactly_as_one_that_was_not(name):
    whole, parts = DETECTORS[name].restored(None), DETECTORS[name].restored(None)
    for number, (time, value) in enumerate(_series(700)):
        if number % 97 == 0:
            parts = DETECTORS[name].restored(json.loads(json.dumps(parts.state())))
        assert whole.update(time, value) == parts.update(time, value)


def test_the_ensemble_survives_a_restart_with_the_same_alarms():
    whole, parts = (Watch.restored(None, threshold=0.2) for _ in range(2))
    alarms = 0
    for number, (time, value) in enumerate(_series(900)):
        spike = 40.0 if number in (500, 800) else 0.0
        if number % 61 == 0:
            parts = Watch.restored(json.loads(json.dumps(parts.state())), threshold=0.2)
        first, second = whole.update(time, value + spike), parts.update(time, value + spike)
        assert first == second
        alarms += first.alarm
    assert alarms


def test_a_new_value_raises_an_alarm_at_once_and_its_repetition_none():
    watch = Watch.restored(None)
    told = []
    for number, (time, value) in enumerate(_series(800)):
        if watch.update(time, 60.0 if number in (600, 650) else value).alarm:
            told.append(number)
    assert told == [600]


def test_the_state_stays_small_however_long_the_series_is():
    watch, sizes = Watch.restored(None), []
    for number, (time, value) in enumerate(_series(3000)):
        watch.update(time, value)
        if number in (1499, 2999):
            sizes.append(len(json.dumps(watch.state())))
    assert sizes[1] < 1.2 * sizes[0] < 60_000


def test_nothing_is_reported_during_probation():
    watch = Watch.restored(None, probation=100)
    assert not any(
        watch.update(time, 1e6 if number == 90 else value).alarm for number, (time, value) in enumerate(_series(100))
    )


@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_a_constant_series_is_usual(name):
    detector = DETECTORS[name].restored(None)
    assert max(detector.update(300.0 * number, 5.0) for number in range(600)) < 0.35


@pytest.mark.parametrize("broken", [1e308, -1e16])
def test_one_broken_value_does_not_hide_what_comes_later(broken):
    watch, rng = Watch.restored(None), random.Random(0)
    for number in range(600):
        watch.update(300.0 * number, rng.gauss(10, 1))
    assert watch.update(300.0 * 600, broken).alarm, "the fault took place"
    watch = Watch.restored(json.loads(json.dumps(watch.state())))
    for number in range(601, 1601):
        watch.update(300.0 * number, rng.gauss(10, 1))
    assert watch.update(300.0 * 1601, 50.0).alarm
