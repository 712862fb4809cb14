"""numpy acting, numpy training and torch are one function in three forms."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.policies import PolicySpec, load_policy, pack_policy
from parlmesh.policies.numpy_networks import DenseActorCritic
from parlmesh.policies.torch_networks import ActorCritic
from parlmesh.types import ActionSpec

specs = st.builds(
    PolicySpec,
    observation_shape=st.sampled_from([(4,), (2, 3), (1,)]),
    action=st.builds(lambda size: ActionSpec("discrete", (size,)), st.integers(2, 7)),
    hidden=st.sampled_from([(8,), (16, 8), ()]),
    activation=st.sampled_from(["tanh", "relu"]),
)


def both(spec, seed=0):
    dense = DenseActorCritic(spec, np.random.default_rng(seed))
    network = ActorCritic(spec)
    network.load_named(dense.named_weights())
    return dense, network


@settings(max_examples=30, deadline=None)
@given(specs, st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_the_three_forms_agree_on_logits_and_values(spec, seed, batch):
    dense, network = both(spec, seed)
    observations = np.random.default_rng(seed).normal(size=(batch, *spec.observation_shape)).astype(np.float32)
    flat = observations.reshape(batch, -1)
    logits, values = dense.forward(flat)
    torch_logits, torch_values = network(torch.from_numpy(flat))
    np.testing.assert_allclose(logits, torch_logits.detach(), atol=1e-5)
    np.testing.assert_allclose(values, torch_values.detach(), atol=1e-5)
    acting = load_policy(pack_policy(spec, dense.named_weights()))
    np.testing.assert_allclose(acting.outputs(observations)[0], logits, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(specs, st.integers(0, 2**32 - 1))
def test_gradients_by_hand_equal_autograd(spec, seed):
    dense, network = both(spec, seed)
    rng = np.random.default_rng(seed)
    flat = rng.normal(size=(5, spec.observation_size)).astype(np.float32)
    logits_gradient = rng.normal(size=(5, spec.action.outputs)).astype(np.float32)
    values_gradient = rng.normal(size=5).astype(np.float32)
    dense.forward(flat)
    dense.backward(logits_gradient, values_gradient)
    torch_logits, torch_values = network(torch.from_numpy(flat))
    loss = (torch_logits * torch.from_numpy(logits_gradient)).sum()
    (loss + (torch_values * torch.from_numpy(values_gradient)).sum()).backward()
    # The gradient has the layout of the parameters, so it can be named in the same way.
    dense.parameters[...] = dense.gradient
    for name, expected in network.named_parameters():
        if name == "log_std":
            continue  # empty here; test_distributions has its gradient
        np.testing.assert_allclose(dense.named_weights()[name], expected.grad, atol=1e-4, err_msg=name)


def test_initial_policies_are_nearly_uniform_and_rows_orthogonal():
    spec = PolicySpec((4,), ActionSpec("discrete", (3,)), hidden=(16, 16))
    weights = DenseActorCritic(spec, np.random.default_rng(1)).named_weights()
    inner = weights["policy.1.weight"]
    np.testing.assert_allclose(inner @ inner.T, 2.0 * np.eye(16), atol=1e-4)
    logits = load_policy(pack_policy(spec, weights)).outputs(np.ones((1, 4), np.float32))[0]
    assert np.ptp(logits) < 0.1


@pytest.mark.parametrize("actions", [2, 3, 17])
def test_sampled_actions_follow_the_softmax_and_carry_their_log_probability(actions):
    spec = PolicySpec((3,), ActionSpec("discrete", (actions,)), hidden=())
    rng = np.random.default_rng(0)
    weights = {
        "policy.0.weight": rng.normal(size=(actions, 3)).astype(np.float32),
        "policy.0.bias": rng.normal(size=actions).astype(np.float32),
    }
    policy = load_policy(pack_policy(spec, weights))
    observation = np.repeat(rng.normal(size=(1, 3)).astype(np.float32), 40_000, axis=0)
    expected = torch.log_softmax(torch.from_numpy(policy.outputs(observation[:1])[0]), dim=1)[0].numpy()
    action, log_prob, _ = policy.act(observation, rng)
    np.testing.assert_allclose(log_prob, expected[action], atol=1e-5)
    frequencies = np.bincount(action, minlength=actions) / len(action)
    np.testing.assert_allclose(frequencies, np.exp(expected), atol=0.015)
    assert policy.greedy(observation[:1]).action[0] == expected.argmax()


def test_an_action_is_never_past_the_end():
    class AlwaysOne(np.random.Generator):
        def random(self, size=None, dtype=np.float64, out=None):
            return np.full(size, np.nextafter(np.float32(1), np.float32(0)), dtype)

    spec = PolicySpec((1,), ActionSpec("discrete", (3,)), hidden=())
    weights = {"policy.0.weight": np.zeros((3, 1), np.float32), "policy.0.bias": np.array([5, 0, -30], np.float32)}
    action, *_ = load_policy(pack_policy(spec, weights)).act(np.zeros((8, 1), np.float32), AlwaysOne(np.random.PCG64()))
    assert action.max() <= 2
