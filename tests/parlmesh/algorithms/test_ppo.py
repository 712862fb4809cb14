from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.algorithms.adam import Adam, clip_norm
from parlmesh.algorithms.ppo import ppo_gradient
from parlmesh.algorithms.ppo_torch import ppo_loss

COEFFICIENTS: dict[str, Any] = {"clip": 0.2, "value_coefficient": 0.5, "entropy_coefficient": 0.01}
LOG_RATIO: dict[str, Any] = {**COEFFICIENTS, "objective": "log_ratio", "log_ratio_penalty": 0.3}
both_objectives = pytest.mark.parametrize("coefficients", [COEFFICIENTS, LOG_RATIO], ids=["clipped", "log_ratio"])


def case(seed, size):
    rng = np.random.default_rng(seed)
    log_prob, behaviour = np.log(rng.uniform(0.05, 1.0, size=(2, size))).astype(np.float32)
    entropy, values, advantages, returns = rng.normal(size=(4, size)).astype(np.float32)
    return log_prob, entropy, values, behaviour, advantages, returns


@both_objectives
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 20))
def test_the_gradient_by_hand_equals_autograd_of_the_same_loss(coefficients, seed, size):
    arrays = case(seed, size)
    gradient, terms = ppo_gradient(*arrays, **coefficients)
    tensors = [torch.from_numpy(array) for array in arrays]
    leaves = [tensor.requires_grad_() for tensor in tensors[:3]]
    loss, torch_terms = ppo_loss(*tensors, **coefficients)
    log_prob, entropy, values = torch.autograd.grad(loss, leaves)
    np.testing.assert_allclose(gradient.log_prob, log_prob, atol=1e-5)
    np.testing.assert_allclose(np.full(size, gradient.entropy), entropy, atol=1e-6)
    np.testing.assert_allclose(gradient.values, values, atol=1e-5)
    np.testing.assert_allclose(terms, torch_terms, rtol=1e-3, atol=1e-4)


@both_objectives
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_the_gradient_equals_finite_differences(coefficients, seed):
    log_prob, *rest = (array.astype(np.float64) for array in case(seed, 4))

    def loss(changed):
        return ppo_gradient(changed, *rest, **coefficients)[1].total

    gradient, _ = ppo_gradient(log_prob, *rest, **coefficients)
    ratio = np.exp(log_prob - rest[2])
    for row in range(4):
        if np.abs(np.abs(ratio[row] - 1.0) - 0.2) < 1e-3:
            continue  # at the kink the loss has no derivative
        nudge = np.zeros_like(log_prob)
        nudge[row] = 1e-6
        slope = (loss(log_prob + nudge) - loss(log_prob - nudge)) / 2e-6
        np.testing.assert_allclose(gradient.log_prob[row], slope, atol=1e-5)


def test_on_policy_the_ratio_is_one_and_the_kl_zero():
    log_prob, entropy, values, _, advantages, returns = case(0, 8)
    _, terms = ppo_gradient(log_prob, entropy, values, log_prob, advantages, returns, **COEFFICIENTS)
    assert terms.approx_kl == 0.0
    assert terms.clip_fraction == 0.0
    np.testing.assert_allclose(terms.policy, -advantages.mean(), atol=1e-6)


@pytest.mark.parametrize(("log_prob", "advantage"), [(0.0, 1.0), (-4.0, -1.0)])
def test_a_clipped_step_has_no_policy_gradient(log_prob, advantage):
    arrays = [np.array([value], np.float32) for value in (log_prob, 0.0, 0.0, -2.0, advantage, 0.0)]
    gradient, terms = ppo_gradient(*arrays, **COEFFICIENTS)
    assert terms.clip_fraction == 1.0
    assert gradient.log_prob[0] == 0.0


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_prob", [0.0, -4.0])
def test_outside_the_range_of_log_ratios_only_the_penalty_pulls_whatever_the_advantage(log_prob, advantage):
    arrays = [np.array([value], np.float32) for value in (log_prob, 0.0, 0.0, -2.0, advantage, 0.0)]
    gradient, terms = ppo_gradient(*arrays, **LOG_RATIO)
    assert gradient.log_prob[0] == pytest.approx(2 * 0.3 * (log_prob + 2.0))
    assert terms.policy == pytest.approx(0.3 * (log_prob + 2.0) ** 2)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(1e-5, 1e-1))
def test_adam_equals_torch(seed, learning_rate):
    rng = np.random.default_rng(seed)
    parameters = rng.normal(size=7).astype(np.float32)
    reference = torch.nn.Parameter(torch.from_numpy(parameters.copy()))
    optimiser = torch.optim.Adam([reference], lr=learning_rate, eps=1e-5)
    adam = Adam(7)
    for _ in range(5):
        gradient = rng.normal(size=7).astype(np.float32)
        adam.step(parameters, gradient, learning_rate)
        reference.grad = torch.from_numpy(gradient)
        optimiser.step()
    np.testing.assert_allclose(parameters, reference.detach(), atol=1e-5)


@given(st.floats(0.1, 10))
def test_a_gradient_is_shortened_to_the_limit_and_keeps_its_direction(limit):
    gradient = np.array([3.0, 4.0], np.float32)
    clipped = gradient.copy()
    assert clip_norm(clipped, limit) == 5.0
    np.testing.assert_allclose(np.linalg.norm(clipped), min(limit, 5.0), rtol=1e-4)
    np.testing.assert_allclose(clipped / np.linalg.norm(clipped), gradient / 5.0, rtol=1e-4)
