import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.training.replay.rate_limiter import RateLimiter


@given(st.floats(0.01, 50.0), st.integers(0, 200), st.lists(st.integers(0, 100), max_size=20), st.integers(1, 64))
def test_the_ratio_is_never_exceeded_and_never_missed_by_a_minibatch(ratio, min_size, inserts, minibatch):
    limiter, inserted, sampled = RateLimiter(ratio, min_size), 0, 0
    for count in inserts:
        limiter.insert(count)
        inserted += count
        while limiter.allowed >= minibatch:
            limiter.sample(minibatch)
            sampled += minibatch
        owed = ratio * max(0, inserted - min_size)
        assert sampled <= owed + 1e-6
        assert sampled > owed - minibatch - 1


def test_nothing_is_sampled_before_there_is_enough():
    limiter = RateLimiter(4.0, 100)
    limiter.insert(100)
    assert limiter.allowed == 0
    assert limiter.ratio == 0.0
    limiter.insert(3)
    assert limiter.allowed == 12


def test_taking_more_than_is_allowed_is_a_mistake():
    limiter = RateLimiter(1.0, 0)
    limiter.insert(5)
    with pytest.raises(AssertionError, match="6 samples were taken, 5 allowed"):
        limiter.sample(6)


def test_a_restored_limiter_owes_what_the_original_owes():
    limiter, copy = RateLimiter(2.5, 10), RateLimiter(2.5, 10)
    limiter.insert(30)
    limiter.sample(20)
    copy.restore(limiter.tensors())
    assert (copy.allowed, copy.ratio) == (limiter.allowed, limiter.ratio) == (30, 1.0)
