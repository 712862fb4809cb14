"""Recurrent and convolutional policies act as torch's network says, step by step."""

import numpy as np
import torch

from parlmesh.policies import PolicySpec, load_policy, pack_policy, torch_threads
from parlmesh.policies.normaliser import Normaliser
from parlmesh.policies.torch_networks import ActorCritic
from parlmesh.types import ActionSpec

THREE = ActionSpec("discrete", (3,))


def test_a_recurrent_policy_remembers_as_the_unrolled_network_does():
    torch.manual_seed(0)
    spec = PolicySpec((4,), THREE, hidden=(8, 6), network="recurrent")
    network, rng = ActorCritic(spec), np.random.default_rng(0)
    policy = load_policy(pack_policy(spec, network.named_weights()))
    observations = rng.normal(size=(7, 5, 4)).astype(np.float32)
    starts = rng.random((7, 5)) < 0.3
    state = policy.initial_state(5)
    found = []
    for observation, start in zip(observations, starts, strict=True):
        assert state is not None
        state = np.where(start[:, None], np.float32(0), state)
        outputs, state = policy.outputs(observation, state=state)
        found.append(outputs)
    with torch.inference_mode():
        expected, _ = network.unroll(torch.from_numpy(observations), torch.from_numpy(starts), torch.zeros(5, 6))
    np.testing.assert_allclose(np.stack(found), expected, atol=1e-5)


def test_a_convolutional_policy_acts_as_its_network_on_images_of_bytes():
    torch.manual_seed(0)
    spec = PolicySpec((3, 9, 7), THREE, hidden=(16,), network="conv", activation="relu")
    network = ActorCritic(spec)
    policy = load_policy(pack_policy(spec, network.named_weights()))
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 9, 7)).astype(np.uint8)
    with torch.inference_mode():
        expected, _ = network(torch.from_numpy(images.astype(np.float32) / 255))
    np.testing.assert_allclose(policy.outputs(images)[0], expected, atol=1e-5)
    assert policy.act(images, np.random.default_rng(1)).action.shape == (4,)


def test_the_memory_of_whole_stretches_is_that_of_single_steps():
    torch.manual_seed(0)
    network = ActorCritic(PolicySpec((4,), THREE, hidden=(7, 6), network="recurrent"))
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(size=(20, 5, 4)).astype(np.float32))
    starts, state = torch.from_numpy(rng.random((20, 5)) < 0.2), torch.randn(5, 6)
    assert starts[0].any()
    outputs, values = network.unroll(features, starts, state)
    (outputs.square().sum() + values.sum()).backward()
    found = [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
    network.zero_grad()
    states, one = [], state
    for step in range(20):
        body = torch.tanh(network.body[0](features[step]))
        one = network.memory(body, torch.where(starts[step].unsqueeze(1), 0.0, one))
        states.append(one)
    hidden = torch.stack(states)
    slow = network.policy[0](hidden), network.value[0](hidden).squeeze(2)
    (slow[0].square().sum() + slow[1].sum()).backward()
    expected = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    torch.testing.assert_close((outputs, values), slow, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


def test_the_memory_of_a_whole_batch_is_computed_in_one_call(monkeypatch):
    """A call per step takes twice as long."""
    calls, real = [], torch.gru

    def counted(*arguments):
        calls.append(1)
        return real(*arguments)

    monkeypatch.setattr(torch, "gru", counted)
    monkeypatch.setattr(torch.nn.GRUCell, "forward", None)
    network = ActorCritic(PolicySpec((4,), THREE, hidden=(7, 6), network="recurrent"))
    starts = torch.from_numpy(np.random.default_rng(0).random((20, 5)) < 0.2)
    network.unroll(torch.zeros(20, 5, 4), starts, torch.zeros(5, 6))
    assert calls == [1]


def test_acting_alone_keeps_the_threads_that_a_trainer_chose(monkeypatch):
    before = torch.get_num_threads()
    spec = PolicySpec((3, 9, 7), THREE, hidden=(16,), network="conv")
    blob = pack_policy(spec, ActorCritic(spec).named_weights())
    monkeypatch.setattr(torch_threads, "_chosen", False)
    try:
        load_policy(blob)
        assert torch.get_num_threads() == 1
        torch_threads.choose_threads(2)
        load_policy(blob)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_states_are_seen_as_one_hot_rows():
    spec = PolicySpec((), THREE, hidden=(), observation_states=4)
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    policy = load_policy(pack_policy(spec, {"policy.0.weight": weight, "policy.0.bias": np.zeros(3, np.float32)}))
    np.testing.assert_array_equal(policy.outputs(np.array([2, 0]))[0], weight[:, [2, 0]].T)


def test_statistics_merge_to_those_of_all_rows_together():
    rng = np.random.default_rng(0)
    batches = [rng.normal(5, 3, size=(size, 2)).astype(np.float32) for size in (1, 50, 7, 1_000)]
    normaliser = Normaliser(2)
    for batch in batches:
        normaliser.add(batch)
    rows = np.concatenate(batches).astype(np.float64)
    np.testing.assert_allclose(normaliser.weights()["normaliser.mean"], rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(normaliser.weights()["normaliser.scale"], 1 / rows.std(axis=0), rtol=1e-5)
    copy = Normaliser(2)
    copy.restore(normaliser.tensors())
    copy.add(batches[0])
    normaliser.add(batches[0])
    np.testing.assert_array_equal(copy.weights()["normaliser.scale"], normaliser.weights()["normaliser.scale"])


def test_a_normalised_policy_sees_what_its_own_statistics_say():
    spec = PolicySpec((2,), THREE, hidden=(), normalised=True)
    normaliser = Normaliser(2)
    normaliser.add(np.array([[0, 100], [2, 300]], np.float32))
    weights = {"policy.0.weight": np.eye(3, 2, dtype=np.float32), "policy.0.bias": np.zeros(3, np.float32)}
    policy = load_policy(pack_policy(spec, {**weights, **normaliser.weights()}))
    seen = np.array([[2, 100], [1, 1e9]], np.float32)
    np.testing.assert_allclose(policy.outputs(seen)[0], [[1, -1, 0], [0, 10, 0]], atol=1e-6)
