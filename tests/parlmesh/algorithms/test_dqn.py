import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.algorithms import dqn, dqn_torch

seeds = st.integers(0, 2**32 - 1)
sizes = st.tuples(st.integers(1, 9), st.integers(2, 5))


def numbers(rng, *shape):
    return rng.normal(0.0, 2.0, shape).astype(np.float32)


@given(seeds, sizes, st.booleans())
def test_double_targets_equal_a_slow_look_at_every_row(seed, size, masked):
    rng = np.random.default_rng(seed)
    batch, actions = size
    returns, discounts = numbers(rng, batch), rng.random(batch).astype(np.float32)
    online, target = numbers(rng, *size), numbers(rng, *size)
    masks = rng.random(size) < 0.5
    masks[np.arange(batch), rng.integers(0, actions, batch)] = True
    found = dqn.double_q_targets(returns, discounts, online, target, masks if masked else None)
    for row in range(batch):
        allowed = [a for a in range(actions) if masks[row, a] or not masked]
        best = max(allowed, key=lambda a: online[row, a])
        assert found[row] == pytest.approx(returns[row] + discounts[row] * target[row, best], abs=1e-5)


@given(seeds, sizes)
def test_with_one_network_double_targets_are_those_of_plain_dqn_and_otherwise_never_above(seed, size):
    rng = np.random.default_rng(seed)
    returns, discounts = numbers(rng, size[0]), rng.random(size[0]).astype(np.float32)
    online, target = numbers(rng, *size), numbers(rng, *size)
    plain = returns + discounts * target.max(axis=1)
    np.testing.assert_allclose(dqn.double_q_targets(returns, discounts, target, target), plain, rtol=1e-6)
    assert (dqn.double_q_targets(returns, discounts, online, target) <= plain + 1e-6).all()


def test_an_end_is_worth_its_reward_even_where_nothing_is_allowed_after_it():
    values = np.array([[90.0, 91.0]], np.float32)
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    found = dqn.double_q_targets(one, zero, values, values, np.zeros((1, 2), bool))
    np.testing.assert_array_equal(found, [1.0])


@given(seeds, sizes)
def test_dueling_has_the_value_as_its_mean_and_the_order_of_the_advantages(seed, size):
    outputs = numbers(np.random.default_rng(seed), size[0], size[1] + 1)
    found = dqn.dueling(outputs)
    np.testing.assert_allclose(found.mean(axis=1), outputs[:, -1], atol=1e-5)
    np.testing.assert_allclose(np.diff(found, axis=1), np.diff(outputs[:, :-1], axis=1), atol=1e-5)


def autograd(outputs, actions, targets, weights, threshold, dueling):
    leaf = torch.from_numpy(outputs.copy()).requires_grad_()
    values = dqn_torch.dueling(leaf) if dueling else leaf
    loss, errors, terms = dqn_torch.huber_loss(
        values,
        torch.from_numpy(actions),
        torch.from_numpy(targets),
        None if weights is None else torch.from_numpy(weights),
        threshold=threshold,
    )
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient.numpy(), errors.numpy(), terms


@settings(max_examples=60, deadline=None)
@given(seeds, sizes, st.floats(0.1, 3.0), st.booleans(), st.booleans())
def test_gradients_by_hand_equal_autograd(seed, size, threshold, weighted, dueling):
    rng = np.random.default_rng(seed)
    batch, count = size
    outputs = numbers(rng, batch, count + dueling)
    actions, targets = rng.integers(0, count, batch), numbers(rng, batch)
    weights = rng.random(batch).astype(np.float32) if weighted else None
    values = dqn.dueling(outputs) if dueling else outputs
    gradient, errors, terms = dqn.huber_gradient(values, actions, targets, weights, threshold=threshold)
    if dueling:
        gradient = dqn.dueling_gradient(gradient)
    expected, expected_errors, expected_terms = autograd(outputs, actions, targets, weights, threshold, dueling)
    np.testing.assert_allclose(gradient, expected, atol=1e-5)
    np.testing.assert_allclose(errors, expected_errors, atol=1e-5)
    np.testing.assert_allclose(terms, expected_terms, rtol=1e-4, atol=1e-5)


@given(seeds, st.floats(0.1, 3.0))
def test_no_error_pulls_harder_than_the_threshold(seed, threshold):
    rng = np.random.default_rng(seed)
    values = numbers(rng, 6, 3) * 100
    gradient, _, _ = dqn.huber_gradient(values, rng.integers(0, 3, 6), numbers(rng, 6), None, threshold=threshold)
    assert np.abs(gradient).max() * 6 <= threshold * 1.0001


def test_a_weight_of_zero_takes_a_step_out_of_the_loss():
    values, actions = np.array([[1, 2], [3, 4]], np.float32), np.array([0, 1])
    targets, weights = np.array([5, 5], np.float32), np.array([0, 1], np.float32)
    gradient, errors, terms = dqn.huber_gradient(values, actions, targets, weights, threshold=1.0)
    np.testing.assert_array_equal(gradient, [[0, 0], [0, -0.5]])
    np.testing.assert_array_equal(errors, [4, 1])
    assert terms.loss == pytest.approx(0.25)
