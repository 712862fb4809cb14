import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.algorithms.n_step import n_step


def slow(rewards, terminated, truncated, *, steps, discount):
    """One step of one environment at a time: the plain definition."""
    length, width = rewards.shape
    found = np.zeros((3, length, width))
    for env in range(width):
        for first in range(length):
            total, factor, row = 0.0, 1.0, first
            while True:
                total += factor * rewards[row, env]
                factor *= discount
                if terminated[row, env]:
                    factor = 0.0
                    break
                if truncated[row, env] or row + 1 == length or row + 1 - first == steps:
                    break
                row += 1
            found[:, first, env] = total, factor, row + 1
    return found


def made_up(seed, length, width, rate=0.2):
    rng = np.random.default_rng(seed)
    terminated = rng.random((length, width)) < rate
    truncated = (rng.random((length, width)) < rate) & ~terminated
    return rng.normal(size=(length, width)).astype(np.float32), terminated, truncated


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 3), st.integers(1, 15), st.floats(0.0, 1.0))
def test_the_vectorised_form_equals_the_slow_one(seed, length, width, steps, discount):
    columns = made_up(seed, length, width)
    found = n_step(*columns, steps=steps, discount=discount)
    expected = slow(*columns, steps=steps, discount=discount)
    np.testing.assert_allclose(found.returns, expected[0], atol=1e-4)
    np.testing.assert_allclose(found.discounts, expected[1], atol=1e-6)
    np.testing.assert_array_equal(found.rows, expected[2])


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
def test_one_step_is_the_reward_and_the_next_row(seed, discount):
    rewards, terminated, truncated = made_up(seed, 5, 3)
    found = n_step(rewards, terminated, truncated, steps=1, discount=discount)
    np.testing.assert_array_equal(found.returns, rewards)
    np.testing.assert_array_equal(found.rows, np.arange(1, 6)[:, None].repeat(3, axis=1))
    np.testing.assert_allclose(found.discounts, np.where(terminated, 0.0, discount), atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_nothing_leaks_back_over_an_end(seed, steps):
    """Nothing after the end of an episode changes anything before it."""
    rewards, terminated, truncated = made_up(seed, 8, 2, rate=0.0)
    truncated[3, 0] = terminated[3, 1] = True
    other = rewards.copy()
    other[4:] += 100.0
    one, changed = (n_step(each, terminated, truncated, steps=steps, discount=0.9) for each in (rewards, other))
    np.testing.assert_array_equal(one.returns[:4], changed.returns[:4])
    assert (one.rows[:4] <= 4).all()


def test_truncation_bootstraps_and_termination_does_not():
    rewards = np.ones((3, 2), np.float32)
    ended = np.zeros((3, 2), bool)
    terminated, truncated = ended.copy(), ended.copy()
    terminated[1, 0] = truncated[1, 1] = True
    found = n_step(rewards, terminated, truncated, steps=3, discount=0.5)
    np.testing.assert_allclose(found.returns, [[1.5, 1.5], [1.0, 1.0], [1.0, 1.0]])
    np.testing.assert_allclose(found.discounts, [[0.0, 0.25], [0.0, 0.5], [0.5, 0.5]])
    np.testing.assert_array_equal(found.rows, [[2, 2], [2, 2], [3, 3]])


@pytest.mark.parametrize("steps", [1, 3, 50])
def test_the_end_of_a_fragment_bootstraps_from_its_last_row(steps):
    quiet = np.zeros((4, 1), bool)
    found = n_step(np.ones((4, 1), np.float32), quiet, quiet, steps=steps, discount=1.0)
    assert found.rows.max() == 4
    np.testing.assert_array_equal(found.discounts, 1.0)
    np.testing.assert_array_equal(found.returns[:, 0], np.minimum(steps, [4, 3, 2, 1]))
