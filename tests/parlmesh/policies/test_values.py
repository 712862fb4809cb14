"""Policies that choose by values of actions: perceptrons, dueling heads, tables; exploration travels with them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.algorithms import dqn_torch
from parlmesh.errors import InvalidInput
from parlmesh.policies import PolicySpec, load_policy, pack_policy
from parlmesh.policies.distributions import masked
from parlmesh.policies.epsilon_greedy import EpsilonGreedy
from parlmesh.policies.numpy_q_networks import DenseQ
from parlmesh.policies.torch_networks import ActorCritic
from parlmesh.types import ActionSpec

THREE = ActionSpec("discrete", (3,))
specs = st.builds(
    PolicySpec,
    observation_shape=st.sampled_from([(4,), (2, 3)]),
    action=st.builds(lambda size: ActionSpec("discrete", (size,)), st.integers(2, 6)),
    hidden=st.sampled_from([(8,), (16, 8), ()]),
    activation=st.sampled_from(["tanh", "relu"]),
    choice=st.just("epsilon_greedy"),
    dueling=st.booleans(),
)


def epsilon(value):
    return {"policy.epsilon": np.array([value], np.float32)}


def both(spec, seed):
    dense, network = DenseQ(spec, np.random.default_rng(seed)), ActorCritic(spec)
    network.load_named({**network.named_weights(), **dense.named_weights()})
    return dense, network


def torch_values(spec, network, features):
    outputs, _ = network(torch.from_numpy(features))
    return dqn_torch.dueling(outputs) if spec.dueling else outputs


@settings(max_examples=30, deadline=None)
@given(specs, st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_acting_training_and_torch_agree_on_values(spec, seed, batch):
    dense, network = both(spec, seed)
    observations = np.random.default_rng(seed).normal(size=(batch, *spec.observation_shape)).astype(np.float32)
    flat = observations.reshape(batch, -1)
    values = dense.forward(flat)
    np.testing.assert_allclose(values, torch_values(spec, network, flat).detach(), atol=1e-5)
    np.testing.assert_array_equal(values, dense.target(flat))
    acting = load_policy(pack_policy(spec, {**dense.named_weights(), **epsilon(0.1)}))
    np.testing.assert_allclose(acting.outputs(observations)[0], values, atol=1e-5)
    np.testing.assert_array_equal(acting.greedy(observations).action, acting.outputs(observations)[0].argmax(axis=1))


@settings(max_examples=30, deadline=None)
@given(specs, st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_gradients_by_hand_are_those_of_the_first_rows(spec, seed, unused):
    dense, network = both(spec, seed)
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(5 + unused, spec.observation_size)).astype(np.float32)
    gradient = rng.normal(size=(5, spec.action.outputs)).astype(np.float32)
    dense.forward(features)
    dense.backward(gradient)
    (torch_values(spec, network, features[:5]) * torch.from_numpy(gradient)).sum().backward()
    # The gradient has the layout of the parameters, so it can be named in the same way.
    dense.parameters[...] = dense.gradient
    for name, expected in network.policy.named_parameters():
        np.testing.assert_allclose(dense.named_weights()[f"policy.{name}"], expected.grad, atol=1e-4, err_msg=name)


def test_the_target_follows_by_the_given_share():
    spec = PolicySpec((2,), THREE, hidden=(4,), choice="epsilon_greedy")
    network = DenseQ(spec, np.random.default_rng(0))
    before = network.target_parameters.copy()
    network.parameters += 1.0
    network.follow(0.25)
    np.testing.assert_allclose(network.target_parameters, before + 0.25, atol=1e-6)
    network.follow(1.0)
    np.testing.assert_array_equal(network.target_parameters, network.parameters)


def test_a_table_gives_the_row_of_each_state():
    spec = PolicySpec((), THREE, hidden=(), network="tabular", observation_states=4, choice="epsilon_greedy")
    table = np.arange(12, dtype=np.float32).reshape(4, 3)[:, ::-1].copy()
    policy = load_policy(pack_policy(spec, {"policy.table": table, **epsilon(0.0)}))
    states = np.array([2, 0, 2])
    np.testing.assert_array_equal(policy.outputs(states)[0], table[states])
    action, log_prob, state = policy.act(states, np.random.default_rng(0))
    assert action.tolist() == [0, 0, 0]
    assert log_prob.tolist() == [0, 0, 0]
    assert state is None


@given(st.floats(0.0, 1.0), st.integers(0, 2**32 - 1))
def test_probabilities_of_the_choices_add_up_and_are_reported(share, seed):
    rng = np.random.default_rng(seed)
    outputs, mask = rng.normal(size=(6, 4)).astype(np.float32), rng.random((6, 4)) < 0.6
    mask[np.arange(6), rng.integers(0, 4, 6)] = True
    outputs = masked(outputs, mask)
    action, log_prob = EpsilonGreedy(share).sample(outputs, rng)
    best, allowed = outputs.argmax(axis=1), mask.sum(axis=1)
    assert mask[np.arange(6), action].all()
    expected = share / allowed + np.where(action == best, 1.0 - share, 0.0)
    np.testing.assert_allclose(np.exp(log_prob), expected, rtol=1e-5)


def test_actions_come_as_often_as_their_probability_says_and_never_a_forbidden_one():
    outputs = np.tile(np.array([1.0, 5.0, 9.0, 2.0], np.float32), (40_000, 1))
    mask = np.array([True, True, False, True])
    action, _ = EpsilonGreedy(0.3).sample(masked(outputs, mask), np.random.default_rng(0))
    shares = np.bincount(action, minlength=4) / len(action)
    np.testing.assert_allclose(shares, [0.1, 0.8, 0.0, 0.1], atol=0.01)


def test_epsilon_outside_its_range_is_refused():
    spec = PolicySpec((2,), THREE, hidden=(), choice="epsilon_greedy")
    weights = DenseQ(spec, np.random.default_rng(0)).named_weights()
    with pytest.raises(InvalidInput, match=r"policy.epsilon must be in 0..1, got 1.5"):
        load_policy(pack_policy(spec, {**weights, **epsilon(1.5)}))
    with pytest.raises(InvalidInput, match=r"policy has no tensor policy.epsilon"):
        load_policy(pack_policy(spec, weights))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action": ActionSpec("multi_discrete", (2, 3))}, "only for discrete actions, got multi_discrete"),
        ({"choice": "sample", "dueling": True}, "can be dueling"),
        ({"network": "tabular"}, "got 0 states and hidden \\[64, 64\\]"),
        ({"network": "tabular", "hidden": (), "observation_states": 3, "dueling": True}, "can be dueling"),
        ({"choice": "softmax"}, "choice must be one of sample, epsilon_greedy, squashed, noisy, got 'softmax'"),
    ],
)
def test_actions_that_cannot_be_chosen_by_values_are_refused(changes, message):
    with pytest.raises(InvalidInput, match=message):
        PolicySpec(**{"observation_shape": (4,), "action": THREE, "choice": "epsilon_greedy", **changes})


def test_a_dueling_convolutional_policy_acts_as_its_network():
    torch.manual_seed(0)
    spec = PolicySpec((2, 6, 6), THREE, hidden=(8,), network="conv", choice="epsilon_greedy", dueling=True)
    network = ActorCritic(spec)
    policy = load_policy(pack_policy(spec, {**network.named_weights(), **epsilon(0.0)}))
    images = np.random.default_rng(0).integers(0, 256, (4, 2, 6, 6)).astype(np.uint8)
    with torch.inference_mode():
        expected = torch_values(spec, network, images.astype(np.float32) / 255)
    np.testing.assert_allclose(policy.outputs(images)[0], expected, atol=1e-5)
