import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.algorithms.gae import gae


def slow_gae(rewards, values, terminated, truncated, *, discount, smoothing):
    """The definition: a weighted sum of TD errors up to the end of the episode."""
    steps, width = rewards.shape
    advantages = np.zeros((steps, width))
    for column in range(width):
        for start in range(steps):
            weight = 1.0
            for step in range(start, steps):
                following = 0.0 if terminated[step, column] else values[step + 1, column]
                error = rewards[step, column] + discount * following - values[step, column]
                advantages[start, column] += weight * error
                if terminated[step, column] or truncated[step, column]:
                    break
                weight *= discount * smoothing
    return advantages


def case(seed, steps, width):
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=(steps, width)).astype(np.float32)
    values = rng.normal(size=(steps + 1, width)).astype(np.float32)
    return rewards, values, rng.random((steps, width)) < 0.2, rng.random((steps, width)) < 0.2


shapes = {"seed": st.integers(0, 10_000), "steps": st.integers(1, 12), "width": st.integers(1, 4)}


@settings(max_examples=60, deadline=None)
@given(**shapes, discount=st.floats(0, 1), smoothing=st.floats(0, 1))
def test_equals_the_definition(seed, steps, width, discount, smoothing):
    arrays = case(seed, steps, width)
    advantages, returns = gae(*arrays, discount=discount, smoothing=smoothing)
    np.testing.assert_allclose(advantages, slow_gae(*arrays, discount=discount, smoothing=smoothing), atol=1e-4)
    np.testing.assert_allclose(returns, advantages + arrays[1][:-1], atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(**shapes)
def test_what_follows_an_end_never_reaches_back(seed, steps, width):
    rewards, values, terminated, truncated = case(seed, steps, width)
    before, _ = gae(rewards, values, terminated, truncated, discount=0.9, smoothing=0.9)
    for column in range(width):
        ends = np.flatnonzero(terminated[:, column] | truncated[:, column])
        if not len(ends):
            continue
        end = ends[0]
        changed_rewards, changed_values = rewards.copy(), values.copy()
        changed_rewards[end + 1 :, column] += 100.0
        changed_values[end + 2 :, column] += 100.0
        after, _ = gae(changed_rewards, changed_values, terminated, truncated, discount=0.9, smoothing=0.9)
        np.testing.assert_array_equal(after[: end + 1, column], before[: end + 1, column])


def test_truncation_bootstraps_and_termination_does_not():
    rewards = np.array([[1.0]], np.float32)
    values = np.array([[0.0], [10.0]], np.float32)
    no, yes = np.array([[False]]), np.array([[True]])
    assert gae(rewards, values, no, yes, discount=0.5, smoothing=1.0)[0][0, 0] == 6.0
    assert gae(rewards, values, yes, no, discount=0.5, smoothing=1.0)[0][0, 0] == 1.0


def test_full_smoothing_gives_the_discounted_return():
    rewards = np.ones((3, 1), np.float32)
    flags = np.zeros((3, 1), np.bool_)
    flags[2] = True
    _, returns = gae(rewards, np.zeros((4, 1), np.float32), flags, ~flags & False, discount=0.5, smoothing=1.0)
    np.testing.assert_allclose(returns[:, 0], [1.75, 1.5, 1.0])
