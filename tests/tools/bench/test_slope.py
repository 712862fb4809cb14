import random

import pytest

from tools.bench.ground.slope import slope, student


def test_a_straight_line_has_its_slope_and_no_doubt() -> None:
    found = slope([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [10.0 + 3 * x for x in range(8)])
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((3.0, 3.0, 3.0))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng, covered = random.Random(0), 0
    times = [index / 100 for index in range(200)]
    for _ in range(200):
        found = slope(times, [5.0 * x + rng.gauss(0, 1) for x in times])
        assert found is not None
        covered += found.low <= 5.0 <= found.high
    assert 180 <= covered <= 199


def test_too_few_samples_give_no_slope() -> None:
    assert slope([0.0, 1.0, 2.0], [1.0, 2.0, 3.0]) is None


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.776), (10, 2.228), (30, 2.042), (1000, 1.962)])
def test_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, rel=0.01)
