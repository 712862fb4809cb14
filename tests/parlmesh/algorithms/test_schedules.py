import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.algorithms.schedules import scheduled

shapes = st.sampled_from(["linear", "exponential"])
positive = st.floats(1e-3, 10.0)


@given(positive, positive, st.floats(0.01, 1.0), shapes)
def test_a_schedule_starts_and_ends_where_it_says_and_stays_there(start, final, share, shape):
    assert scheduled(0.0, start, final, share=share, shape=shape) == pytest.approx(start)
    for progress in (share, share + 0.1, 5.0):
        assert scheduled(progress, start, final, share=share, shape=shape) == pytest.approx(final)


@given(positive, positive, st.floats(0.0, 1.0), st.floats(0.0, 1.0), shapes)
def test_a_schedule_goes_one_way_and_never_past_its_ends(start, final, one, other, shape):
    early, late = (scheduled(progress, start, final, shape=shape) for progress in sorted((one, other)))
    lowest, highest = sorted((start, final))
    assert lowest * 0.999999 <= min(early, late) <= max(early, late) <= highest * 1.000001
    assert (late - early) * (final - start) >= -1e-9


def test_half_way_is_the_mean_of_the_ends_by_sum_or_by_product():
    assert scheduled(0.25, 1.0, 0.01, share=0.5) == pytest.approx(0.505)
    assert scheduled(0.25, 1.0, 0.01, share=0.5, shape="exponential") == pytest.approx(0.1)


def test_a_schedule_over_nothing_is_at_its_end():
    assert scheduled(0.0, 1.0, 0.2, share=0.0) == 0.2
