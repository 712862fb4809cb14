import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.algorithms.gae import gae
from parlmesh.algorithms.vtrace import vtrace


def case(seed, steps, width):
    rng = np.random.default_rng(seed)
    log_rhos = rng.normal(0, 0.7, size=(steps, width)).astype(np.float32)
    rewards = rng.normal(size=(steps, width)).astype(np.float32)
    values = rng.normal(size=(steps + 1, width)).astype(np.float32)
    terminated = rng.random((steps, width)) < 0.2
    return log_rhos, rewards, values, terminated, (rng.random((steps, width)) < 0.2) & ~terminated


def slow_targets(log_rhos, rewards, values, terminated, truncated, *, discount, smoothing):
    """Equation 1 of the paper as it is written: a sum of products, episode by episode."""
    steps, width = rewards.shape
    targets = values[:-1].astype(np.float64)
    for column in range(width):
        for start in range(steps):
            weight = 1.0
            for step in range(start, steps):
                ratio = np.exp(log_rhos[step, column])
                following = 0.0 if terminated[step, column] else values[step + 1, column]
                error = rewards[step, column] + discount * following - values[step, column]
                targets[start, column] += weight * min(1.0, ratio) * error
                if terminated[step, column] or truncated[step, column]:
                    break
                weight *= discount * smoothing * min(1.0, ratio)
    return targets


shapes = {"seed": st.integers(0, 10_000), "steps": st.integers(1, 12), "width": st.integers(1, 4)}


@settings(max_examples=60)
@given(**shapes, discount=st.floats(0, 1), smoothing=st.floats(0, 1))
def test_targets_equal_the_sum_in_the_paper(seed, steps, width, discount, smoothing):
    arrays = case(seed, steps, width)
    targets = vtrace(*arrays, discount=discount, smoothing=smoothing).targets
    np.testing.assert_allclose(targets, slow_targets(*arrays, discount=discount, smoothing=smoothing), atol=1e-4)


@settings(max_examples=60)
@given(**shapes, discount=st.floats(0, 1), smoothing=st.floats(0, 1))
def test_on_policy_advantages_and_targets_are_those_of_gae(seed, steps, width, discount, smoothing):
    log_rhos, *arrays = case(seed, steps, width)
    found = vtrace(np.zeros_like(log_rhos), *arrays, discount=discount, smoothing=smoothing)
    expected = gae(*arrays, discount=discount, smoothing=smoothing)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@settings(max_examples=60)
@given(**shapes)
def test_on_policy_without_smoothing_the_targets_are_discounted_returns(seed, steps, width):
    log_rhos, rewards, values, terminated, truncated = case(seed, steps, width)
    none = np.zeros_like(truncated)
    targets = vtrace(np.zeros_like(log_rhos), rewards, values, terminated, none, discount=0.9).targets
    expected = values[-1].astype(np.float64)
    for step in range(steps - 1, -1, -1):
        expected = rewards[step] + 0.9 * np.where(terminated[step], 0.0, expected)
        np.testing.assert_allclose(targets[step], expected, atol=1e-4)


@settings(max_examples=40)
@given(**shapes)
def test_what_follows_an_end_never_reaches_back(seed, steps, width):
    log_rhos, rewards, values, terminated, truncated = case(seed, steps, width)
    before = vtrace(log_rhos, rewards, values, terminated, truncated, discount=0.9)
    for column in range(width):
        ends = np.flatnonzero(terminated[:, column] | truncated[:, column])
        if not len(ends):
            continue
        end = ends[0]
        changed_rewards, changed_values = rewards.copy(), values.copy()
        changed_rewards[end + 1 :, column] += 100.0
        changed_values[end + 2 :, column] += 100.0
        after = vtrace(log_rhos, changed_rewards, changed_values, terminated, truncated, discount=0.9)
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one[: end + 1, column], other[: end + 1, column])


def test_truncation_bootstraps_and_termination_does_not():
    zero, reward = np.zeros((1, 1), np.float32), np.array([[1.0]], np.float32)
    values, no, yes = np.array([[0.0], [10.0]], np.float32), np.array([[False]]), np.array([[True]])
    assert vtrace(zero, reward, values, no, yes, discount=0.5).advantages[0, 0] == 6.0
    assert vtrace(zero, reward, values, yes, no, discount=0.5).advantages[0, 0] == 1.0


def test_an_action_the_policy_would_not_take_teaches_values_nothing():
    log_rhos, rewards, values, terminated, truncated = case(0, 5, 2)
    _, targets = vtrace(np.full_like(log_rhos, -80.0), rewards, values, terminated, truncated, discount=0.9)
    np.testing.assert_allclose(targets, values[:-1], atol=1e-6)
