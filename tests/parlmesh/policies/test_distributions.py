from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.policies import PolicySpec, load_policy, pack_policy
from parlmesh.policies.distributions import distribution_for, masked, squash
from parlmesh.policies.numpy_networks import DenseActorCritic
from parlmesh.policies.torch_networks import ActorCritic
from parlmesh.types import ActionSpec, Array

ACTIONS = [
    ActionSpec("discrete", (5,)),
    ActionSpec("multi_discrete", (2, 5, 3)),
    ActionSpec("continuous", low=(-1.0, 0.0), high=(1.0, 10.0)),
]


def case(action, seed, size=6):
    rng = np.random.default_rng(seed)
    log_std = rng.normal(0, 0.3, len(action.low)).astype(np.float32)
    gradient = np.zeros_like(log_std)
    outputs = rng.normal(size=(size, action.outputs)).astype(np.float32)
    distribution = distribution_for(action, log_std, gradient)
    actions, log_prob = distribution.sample(outputs, rng)
    return distribution, outputs, actions, log_prob, log_std, gradient


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ACTIONS), st.integers(0, 10_000))
def test_what_was_sampled_has_the_likelihood_it_was_sampled_with(action, seed):
    distribution, outputs, actions, log_prob, _, _ = case(action, seed)
    assert actions.shape == (6, *action.shape)
    np.testing.assert_allclose(distribution.likelihood(outputs, actions).log_prob, log_prob, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ACTIONS), st.integers(0, 10_000))
def test_likelihoods_and_gradients_equal_torch(action, seed):
    distribution, outputs, actions, _, log_std, log_std_gradient = case(action, seed)
    found = distribution.likelihood(outputs, actions)
    weights = np.random.default_rng(seed + 1).normal(size=6).astype(np.float32)
    gradient = distribution.gradient(weights, -0.3)

    network = ActorCritic(PolicySpec((1,), action, hidden=(2,)))
    network.log_std.data = torch.from_numpy(log_std.copy())
    tensor = torch.from_numpy(outputs).requires_grad_()
    log_prob, entropy = network.likelihood(tensor, torch.from_numpy(actions))
    ((log_prob * torch.from_numpy(weights)).sum() - 0.3 * entropy.sum()).backward()
    np.testing.assert_allclose(found.log_prob, log_prob.detach(), atol=1e-4)
    np.testing.assert_allclose(found.entropy, entropy.detach(), atol=1e-4)
    expected = np.zeros_like(outputs) if tensor.grad is None else tensor.grad
    np.testing.assert_allclose(gradient, expected, atol=1e-4)
    if action.kind == "continuous":
        assert network.log_std.grad is not None
        np.testing.assert_allclose(log_std_gradient, network.log_std.grad, atol=1e-4)


@pytest.mark.parametrize("action", ACTIONS[:2])
def test_a_forbidden_choice_is_never_drawn_and_has_no_gradient(action):
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(2_000, action.outputs)).astype(np.float32)
    mask = rng.random(outputs.shape) < 0.5
    start = 0
    for size in action.sizes:
        mask[:, start] = True
        start += size
    distribution = distribution_for(action, np.empty(0, np.float32))
    for actions in (distribution.sample(masked(outputs, mask), rng)[0], distribution.mode(masked(outputs, mask))):
        columns, start = actions.reshape(len(actions), -1), 0
        for index, size in enumerate(action.sizes):
            assert mask[np.arange(len(actions)), start + columns[:, index]].all()
            start += size
    likelihood = distribution.likelihood(masked(outputs, mask), actions)
    assert np.isfinite(likelihood.entropy).all()
    gradient = distribution.gradient(np.ones(len(actions), np.float32), 0.1)
    np.testing.assert_array_equal(gradient[~mask], 0.0)


@given(st.floats(-50, 50, width=32))
def test_a_squashed_action_lies_between_the_bounds(value):
    low, high = np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)
    squashed = squash(np.array([[value, -value]], np.float32), low, high)
    assert (low <= squashed).all()
    assert (squashed <= high).all()


def test_the_mean_of_continuous_samples_is_the_output():
    distribution, *_ = case(ACTIONS[2], 0)
    outputs = np.repeat(np.array([[0.5, -1.0]], np.float32), 50_000, axis=0)
    actions, _ = distribution.sample(outputs, np.random.default_rng(1))
    np.testing.assert_allclose(actions.mean(axis=0), [0.5, -1.0], atol=0.03)


def test_clipped_actions_are_cut_off_at_their_bounds_and_squashed_ones_never_reach_them():
    action = ActionSpec("continuous", low=(-1.0, 0.0), high=(1.0, 2.0))
    drawn = np.array([[-3.0, 0.5], [0.25, 7.0]], np.float32)
    expected: dict[Literal["clipped", "squashed"], Array] = {
        "clipped": np.array([[-1.0, 0.5], [0.25, 2.0]]),
        "squashed": squash(drawn, np.array([-1, 0]), np.array([1, 2])),
    }
    for actions, wanted in expected.items():
        spec = PolicySpec((3,), action, hidden=(4,), actions=actions)
        weights = DenseActorCritic(spec, np.random.default_rng(0)).named_weights()
        np.testing.assert_allclose(load_policy(pack_policy(spec, weights)).to_environment(drawn), wanted, rtol=1e-6)
