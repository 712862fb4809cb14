"""NAB's score by hand-made series, and the ensemble's on the real ones."""

import os
from pathlib import Path

import numpy as np
import pytest

from parlmesh.mapek.detection.nab_files import read_files, score_table
from parlmesh.mapek.detection.nab_score import Series, raw_score, scaled, sigmoid

NAB = Path(os.environ.get("PARLMESH_DATA", "data")) / "nab"


def _series(*alarms, windows=((500, 599),), rows=1000):
    scores = np.zeros(rows)
    scores[list(alarms)] = 1.0
    return Series("made", scores, windows)


def test_silence_scores_zero_and_the_earliest_alarms_a_hundred():
    assert scaled(raw_score(_series(), 0.5), 1) == 0.0
    assert scaled(raw_score(_series(500), 0.5), 1) == pytest.approx(100.0)


def test_a_later_alarm_counts_less_and_only_the_best_of_a_window_counts():
    early, late = raw_score(_series(500), 0.5), raw_score(_series(598), 0.5)
    assert early > late > 0
    assert raw_score(_series(500, 550, 598), 0.5) == early


def test_a_false_alarm_costs_more_the_further_it_is_from_the_window_before():
    missed = raw_score(_series(), 0.5)
    assert raw_score(_series(400), 0.5) - missed == pytest.approx(-0.11)
    near, far = (raw_score(_series(row), 0.5) - missed for row in (605, 990))
    assert far == pytest.approx(-0.11)
    assert far < near < 0


def test_alarms_during_probation_do_not_count():
    assert raw_score(_series(10, 149), 0.5) == raw_score(_series(), 0.5)


def test_the_sigmoid_is_the_published_one():
    assert sigmoid(0.0) == 0.0
    assert sigmoid(-1.0) == pytest.approx(0.98661, abs=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not NAB.is_dir(), reason="no folder nab in PARLMESH_DATA")
def test_the_ensemble_scores_sixty_and_more_than_a_windowed_gaussian_with_the_same_quiet_time():
    rows = {row["detector"]: row for row in score_table(read_files(NAB))}
    assert rows["ensemble"]["score"] >= 60
    assert rows["ensemble"]["score"] > rows["windowed Gaussian"]["score"]
