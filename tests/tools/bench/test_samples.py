import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.bench.ground.samples import Samples, percentile, ratio

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@given(numbers)
def test_the_median_lies_within_the_spread(values: list[float]) -> None:
    samples = Samples(tuple(values))
    low, high = samples.spread
    assert low <= samples.median <= high
    assert {low, high} <= set(values)


def test_a_figure_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        Samples(())


@given(numbers, st.floats(0.01, 1.0))
def test_a_percentile_is_the_smallest_value_that_enough_values_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    smaller = [value for value in values if value < found]
    assert all(sum(value <= other for value in values) < share * len(values) for other in smaller)


def test_a_ratio_is_that_of_the_medians_and_none_without_both() -> None:
    ours, theirs = Samples((9.0, 10.0, 50.0)), Samples((2.0,))
    assert ratio(ours, theirs) == 5.0
    assert ratio(ours, None) is None
    assert ratio(None, theirs) is None
