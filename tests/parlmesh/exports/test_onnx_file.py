"""The exported model chooses as ours does, from the raw observation."""

import itertools
from typing import Any

import numpy as np
import onnxruntime
import pytest

from parlmesh.errors import FailedPrecondition
from parlmesh.exports.onnx_file import to_onnx
from parlmesh.policies import PolicySpec, load_policy, pack_policy
from parlmesh.policies.torch_networks import ActorCritic
from parlmesh.types import ActionSpec

ACTIONS = {
    "discrete": ActionSpec("discrete", (5,)),
    "multi_discrete": ActionSpec("multi_discrete", (2, 3)),
    "continuous": ActionSpec("continuous", low=(-2.0, 0.0), high=(2.0, 5.0)),
}
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "relu without layers": {"activation": "relu", "hidden": ()},
    "normalised": {"normalised": True},
    "clipped": {"actions": "clipped"},
    "recurrent": {"network": "recurrent", "hidden": (6, 7)},
    "conv": {"network": "conv", "observation_shape": (3, 9, 8)},
    "nature": {"network": "nature", "observation_shape": (2, 37, 40)},
    "impala": {"network": "impala", "observation_shape": (3, 17, 20)},
    "minatar": {"network": "minatar", "observation_shape": (4, 10, 10)},
    "states": {"observation_shape": (), "observation_states": 11},
}


def weights_of(spec):
    rng = np.random.default_rng(0)
    named = ActorCritic(spec).named_weights()
    weights = {
        name: rng.normal(size=weight.shape).astype(np.float32)
        for name, weight in named.items()
        if not name.startswith("value.")
    }
    if spec.normalised:
        weights["normaliser.mean"] = rng.normal(size=spec.observation_size).astype(np.float32)
        weights["normaliser.scale"] = rng.uniform(0.1, 20.0, spec.observation_size).astype(np.float32)
    return weights


def observations(spec, dtype, count):
    rng = np.random.default_rng(1)
    if spec.observation_states:
        return rng.integers(0, spec.observation_states, count)
    return (rng.normal(size=(count, *spec.observation_shape)) * 50).astype(dtype)


# A continuous action cannot be masked.
CASES = [case for case in itertools.product(NETWORKS, ACTIONS, [False, True]) if case[1:] != ("continuous", True)]


@pytest.mark.parametrize(("network", "action", "masked"), CASES)
def test_the_exported_model_is_our_greedy_policy(network, action, masked):
    settings = {"observation_shape": (4,), "hidden": (8,), "masked": masked, **NETWORKS[network]}
    spec = PolicySpec(action=ACTIONS[action], **settings)
    weights, dtype = weights_of(spec), "int64" if spec.observation_states else "float32"
    ours = load_policy(pack_policy(spec, weights))
    theirs = onnxruntime.InferenceSession(to_onnx(spec, weights, dtype))
    # Two steps of any number of environments: memory continues, and the batch size is not part of the file.
    for count in (13, 1):
        state, inputs = ours.initial_state(count), {}
        for _ in range(2):
            inputs["observation"] = observations(spec, dtype, count)
            mask = np.random.default_rng(2).random((count, spec.action.outputs)) < 0.5 if masked else None
            if mask is not None:
                inputs["mask"] = mask
            if state is not None:
                inputs["state"] = state
            choice = ours.greedy(inputs["observation"], mask, state)
            outputs, expected_state = ours.outputs(inputs["observation"], mask, state)
            found = dict(zip([each.name for each in theirs.get_outputs()], theirs.run(None, inputs), strict=True))
            np.testing.assert_allclose(found["outputs"], outputs, rtol=1e-4, atol=1e-4)
            expected = ours.to_environment(choice.action)
            assert found["action"].dtype == expected.dtype
            np.testing.assert_allclose(found["action"], expected, rtol=1e-4, atol=1e-4)
            if expected_state is not None:
                np.testing.assert_allclose(found["next_state"], expected_state, atol=1e-5)
                state = expected_state


def test_an_image_of_bytes_is_taken_as_it_is():
    spec = PolicySpec((3, 9, 8), ACTIONS["discrete"], hidden=(8,), network="conv")
    weights = weights_of(spec)
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 9, 8), np.uint8)
    theirs = onnxruntime.InferenceSession(to_onnx(spec, weights, "uint8"))
    outputs = theirs.run(["outputs"], {"observation": images})[0]
    np.testing.assert_allclose(
        outputs, load_policy(pack_policy(spec, weights)).outputs(images)[0], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("settings", [{"dueling": True}, {"dueling": True, "masked": True}, {}])
def test_values_of_actions_are_exported_too(settings):
    spec = PolicySpec((4,), ACTIONS["discrete"], hidden=(8,), choice="epsilon_greedy", **settings)
    weights = {**weights_of(spec), "policy.epsilon": np.array([0.1], np.float32)}
    ours, theirs = (
        load_policy(pack_policy(spec, weights)),
        onnxruntime.InferenceSession(to_onnx(spec, weights, "float32")),
    )
    inputs = {"observation": observations(spec, "float32", 13)}
    if spec.masked:
        inputs["mask"] = np.random.default_rng(2).random((13, 5)) < 0.5
    action, outputs = theirs.run(["action", "outputs"], inputs)
    expected, _ = ours.outputs(inputs["observation"], inputs.get("mask"))
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(action, ours.greedy(inputs["observation"], inputs.get("mask")).action)


@pytest.mark.parametrize(("choice", "own"), [("squashed", {}), ("noisy", {"policy.noise": [0.1]})])
def test_actions_that_are_scaled_are_exported_too(choice, own):
    spec = PolicySpec((4,), ACTIONS["continuous"], hidden=(8,), choice=choice)
    own = {name: np.array(value, np.float32) for name, value in {"policy.epsilon": [0.0], **own}.items()}
    weights = {**weights_of(spec), **own}
    ours, theirs = (
        load_policy(pack_policy(spec, weights)),
        onnxruntime.InferenceSession(to_onnx(spec, weights, "float32")),
    )
    seen = observations(spec, "float32", 13) / 50
    expected = ours.to_environment(ours.greedy(seen).action)
    np.testing.assert_allclose(theirs.run(["action"], {"observation": seen})[0], expected, rtol=1e-4, atol=1e-4)


def test_a_table_is_exported_too():
    spec = PolicySpec((), ACTIONS["discrete"], (), network="tabular", observation_states=7, choice="epsilon_greedy")
    table = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    weights = {"policy.table": table, "policy.epsilon": np.array([0.1], np.float32)}
    theirs = onnxruntime.InferenceSession(to_onnx(spec, weights, "int64"))
    states = np.arange(7)
    found = theirs.run(["action"], {"observation": states})[0]
    np.testing.assert_array_equal(found, load_policy(pack_policy(spec, weights)).greedy(states).action)


def test_a_network_of_another_kind_is_refused():
    spec = PolicySpec((4,), ACTIONS["discrete"])
    object.__setattr__(spec, "network", "unheard-of")
    with pytest.raises(FailedPrecondition, match="a unheard-of policy cannot be written as ONNX"):
        to_onnx(spec, {}, "float32")
