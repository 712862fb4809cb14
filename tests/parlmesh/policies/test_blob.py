import numpy as np
import pytest

from parlmesh.errors import InvalidInput
from parlmesh.policies import PolicySpec, load_policy, pack_policy, unpack_policy
from parlmesh.policies.dense import DenseActorCritic

SPEC = PolicySpec((4,), 2, hidden=(8,))
WEIGHTS = DenseActorCritic(SPEC, np.random.default_rng(0)).named_weights()


def test_a_policy_comes_back_with_its_specification():
    spec, weights = unpack_policy(pack_policy(SPEC, WEIGHTS))
    assert spec == SPEC
    assert all(np.array_equal(weights[name], WEIGHTS[name]) for name in WEIGHTS)


def test_equal_policies_have_equal_bytes():
    shuffled = dict(reversed(WEIGHTS.items()))
    assert pack_policy(SPEC, WEIGHTS) == pack_policy(SPEC, shuffled)


@pytest.mark.parametrize("data", [b"", b"\x80\x04K\x01.", b"\xff" * 64, pack_policy(SPEC, WEIGHTS)[:-1]])
def test_bytes_that_are_no_policy_are_refused(data):
    with pytest.raises(InvalidInput, match="not a safetensors file"):
        load_policy(data)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({**WEIGHTS, "policy.0.bias": np.zeros(9, np.float32)}, r"policy.0.bias must be float32\[8\], got float32\[9\]"),
        ({**WEIGHTS, "policy.0.bias": np.zeros(8)}, r"policy.0.bias must be float32\[8\], got float64\[8\]"),
        ({name: value for name, value in WEIGHTS.items() if "1.weight" not in name}, "no tensor policy.1.weight"),
    ],
)
def test_weights_that_do_not_fit_the_specification_are_refused_by_name(weights, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        load_policy(pack_policy(SPEC, weights))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "conv"}, "policy kind must be mlp"),
        ({"activation": "gelu"}, "activation must be one of tanh, relu"),
        ({"action_count": 1}, "action_count must be >= 2"),
        ({"hidden": (0,)}, "layer sizes must be >= 1"),
    ],
)
def test_an_impossible_specification_is_refused(changes, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        PolicySpec(**{"observation_shape": (4,), "action_count": 2, **changes})


def test_text_that_is_no_specification_is_refused():
    with pytest.raises(InvalidInput, match="cannot be read"):
        PolicySpec.from_json('{"kind": "mlp"}')
