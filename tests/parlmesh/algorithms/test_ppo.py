import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.algorithms.adam import Adam, clip_norm
from parlmesh.algorithms.ppo import ppo_gradient
from parlmesh.algorithms.ppo_torch import ppo_loss

COEFFICIENTS = {"clip": 0.2, "value_coefficient": 0.5, "entropy_coefficient": 0.01}


def case(seed, size, actions):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(size, actions)).astype(np.float32)
    values, advantages, returns = rng.normal(size=(3, size)).astype(np.float32)
    chosen = rng.integers(0, actions, size)
    log_prob = np.log(np.full(size, 1 / actions, np.float32)) + rng.normal(0, 0.3, size).astype(np.float32)
    return logits, values, chosen, log_prob, advantages, returns


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(2, 6))
def test_the_gradient_by_hand_equals_autograd_of_the_same_loss(seed, size, actions):
    arrays = case(seed, size, actions)
    logits_gradient, values_gradient, terms = ppo_gradient(*arrays, **COEFFICIENTS)
    tensors = [torch.from_numpy(array) for array in arrays]
    tensors[0].requires_grad_()
    tensors[1].requires_grad_()
    loss, torch_terms = ppo_loss(*tensors, **COEFFICIENTS)
    loss.backward()
    np.testing.assert_allclose(logits_gradient, tensors[0].grad, atol=1e-5)
    np.testing.assert_allclose(values_gradient, tensors[1].grad, atol=1e-5)
    np.testing.assert_allclose(terms, torch_terms, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_the_gradient_equals_finite_differences(seed):
    logits, values, chosen, log_prob, advantages, returns = (
        array.astype(np.float64) if array.dtype == np.float32 else array for array in case(seed, 4, 3)
    )

    def loss(changed):
        return ppo_gradient(changed, values, chosen, log_prob, advantages, returns, **COEFFICIENTS)[2].total

    gradient, _, _ = ppo_gradient(logits, values, chosen, log_prob, advantages, returns, **COEFFICIENTS)
    ratio = np.exp(torch.log_softmax(torch.from_numpy(logits), 1).numpy()[range(4), chosen] - log_prob)
    for row in range(4):
        if np.abs(np.abs(ratio[row] - 1.0) - 0.2) < 1e-3:
            continue  # at the kink the loss has no derivative
        for column in range(3):
            nudge = np.zeros_like(logits)
            nudge[row, column] = 1e-6
            slope = (loss(logits + nudge) - loss(logits - nudge)) / 2e-6
            np.testing.assert_allclose(gradient[row, column], slope, atol=1e-5)


def test_on_policy_the_ratio_is_one_and_the_kl_zero():
    logits, values, chosen, _, advantages, returns = case(0, 8, 3)
    log_prob = torch.log_softmax(torch.from_numpy(logits), 1).numpy()[range(8), chosen]
    _, _, terms = ppo_gradient(logits, values, chosen, log_prob, advantages, returns, **COEFFICIENTS)
    assert abs(terms.approx_kl) < 1e-6
    assert terms.clip_fraction == 0.0
    np.testing.assert_allclose(terms.policy, -advantages.mean(), atol=1e-6)


def test_a_clipped_step_has_no_policy_gradient():
    logits = np.array([[3.0, 0.0]], np.float32)
    gradient, _, terms = ppo_gradient(
        logits,
        np.zeros(1, np.float32),
        np.array([0]),
        np.array([-2.0], np.float32),
        np.ones(1, np.float32),
        np.zeros(1, np.float32),
        clip=0.2,
        value_coefficient=0.0,
        entropy_coefficient=0.0,
    )
    assert terms.clip_fraction == 1.0
    np.testing.assert_array_equal(gradient, 0.0)


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
