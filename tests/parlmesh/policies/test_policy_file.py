import numpy as np
import pytest

from parlmesh.errors import InvalidInput
from parlmesh.policies import PolicySpec, load_policy, pack_policy, unpack_policy
from parlmesh.policies.numpy_networks import DenseActorCritic
from parlmesh.types import ActionSpec

TWO = ActionSpec("discrete", (2,))
SPEC = PolicySpec((4,), TWO, hidden=(8,))
WEIGHTS = DenseActorCritic(SPEC, np.random.default_rng(0)).named_weights()


def test_a_policy_comes_back_with_its_specification():
    spec, weights = unpack_policy(pack_policy(SPEC, WEIGHTS))
    assert spec == SPEC
    assert all(np.array_equal(weights[name], WEIGHTS[name]) for name in WEIGHTS)


def test_equal_policies_have_equal_bytes():
    shuffled = dict(reversed(WEIGHTS.items()))
    assert pack_policy(SPEC, WEIGHTS) == pack_policy(SPEC, shuffled)


@pytest.mark.parametrize("data", [b"", b"\x80\x04K\x01.", b"\xff" * 64, pack_policy(SPEC, WEIGHTS)[:-1]])
def test_bytes_that_are_not_a_policy_are_refused(data):
    with pytest.raises(InvalidInput, match="not a safetensors file"):
        load_policy(data)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (
            {**WEIGHTS, "policy.0.bias": np.zeros(9, np.float32)},
            r"policy.0.bias must be float32\[8\], got float32\[9\]",
        ),
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
        ({"network": "transformer"}, "network must be one of mlp, recurrent, conv"),
        ({"activation": "gelu"}, "activation must be one of tanh, relu"),
        ({"action": ActionSpec("discrete", (1,))}, "at least 2 choices"),
        ({"hidden": (0,)}, "layer sizes must be >= 1"),
        ({"action": ActionSpec("discrete", (2, 2))}, "a discrete action has one size"),
        ({"action": ActionSpec("multi_discrete", ())}, "at least 2 choices"),
        ({"action": ActionSpec("continuous", low=(0.0,), high=())}, "as many lower as upper bounds"),
        ({"action": ActionSpec("continuous", low=(1.0,), high=(0.0,))}, "finite and in order"),
        ({"action": ActionSpec("continuous", low=(0.0,), high=(float("inf"),))}, "finite and in order"),
        ({"action": ActionSpec("continuous", low=(0.0,), high=(1.0,)), "masked": True}, "cannot be masked"),
        ({"network": "recurrent", "hidden": ()}, "at least one hidden layer"),
        ({"network": "conv"}, "needs observations"),
        ({"observation_states": 5, "normalised": True}, "states are not normalised"),
    ],
)
def test_an_impossible_specification_is_refused(changes, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        PolicySpec(**{"observation_shape": (4,), "action": TWO, **changes})


def test_text_that_is_not_a_specification_is_refused():
    with pytest.raises(InvalidInput, match="cannot be read"):
        PolicySpec.from_json('{"network": "mlp"}')


def test_a_specification_nested_without_end_is_refused() -> None:
    with pytest.raises(InvalidInput, match="policy specification cannot be read"):
        PolicySpec.from_json("[" * 100_000)
