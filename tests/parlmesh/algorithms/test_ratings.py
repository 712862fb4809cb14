"""Elo from games: known differences are recovered, and intervals cover as often as stated."""

import numpy as np
import pytest

from parlmesh.algorithms.ratings import ratings, score_bounds


def test_a_known_difference_is_found():
    found = ratings({(1, 2): (2400, 0, 7600)})
    assert found[1].elo == 0.0
    # A score of 0.76 is 200 points.
    assert found[2].elo == pytest.approx(200.0, abs=3.0)
    assert 3.0 < found[2].error < 10.0
    assert found[2].games == 10_000


def test_ratings_add_up_over_players_that_never_met():
    found = ratings({(1, 2): (2400, 0, 7600), (2, 3): (2400, 0, 7600)})
    assert found[3].elo == pytest.approx(400.0, abs=8.0)
    assert found[3].error > found[2].error


def test_an_unbeaten_player_has_a_finite_rating_and_draws_pull_ratings_together():
    won = ratings({(1, 2): (0, 0, 20)})[2]
    drawn = ratings({(1, 2): (0, 20, 0)})[2]
    assert np.isfinite(won.elo)
    assert won.elo > 400.0
    assert drawn.elo == pytest.approx(0.0, abs=1e-6)
    assert ratings({}) == {}


def test_intervals_hold_the_true_rating_about_as_often_as_they_say():
    rng, held = np.random.default_rng(0), 0
    for _ in range(300):
        won = int(rng.binomial(100, 1 / (1 + 10 ** (-100 / 400))))
        found = ratings({(1, 2): (100 - won, 0, won)})[2]
        held += abs(found.elo - 100.0) <= found.error
    assert held / 300 > 0.92


def test_bounds_of_a_score_narrow_with_the_games():
    low, high = score_bounds(60, 0, 40)
    assert low < 0.6 < high
    tighter = score_bounds(600, 0, 400)
    assert tighter[0] > low
    assert tighter[0] > 0.5
    assert score_bounds(0, 0, 0) == (0.0, 1.0)
