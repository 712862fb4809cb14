import numpy as np
import pytest

from parlmesh.errors import InvalidInput
from parlmesh.federation.schema import ModelSchema, TensorSpec

MODEL: dict[str, np.ndarray] = {
    "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "bias": np.ones(3, np.float32),
    "steps": np.array(7, np.int64),
    "statistics": np.zeros(4),
}
SCHEMA = ModelSchema.of(MODEL, {"statistics": "local"})


def specs(**changes):
    found = {"bias": ("bias", (3,), "float32"), "weight": ("weight", (3, 4), "float32")}
    found.update(changes)
    return [TensorSpec(*spec) for spec in found.values() if spec is not None]


def test_only_floats_without_another_rule_are_aggregated():
    assert [tensor.name for tensor in SCHEMA.joined] == ["bias", "weight"]
    assert SCHEMA.size == 15
    assert {tensor.name: tensor.rule for tensor in SCHEMA.tensors} == {
        "bias": "mean",
        "statistics": "local",
        "steps": "keep",
        "weight": "mean",
    }
    assert list(SCHEMA.local(MODEL)) == ["statistics"]
    assert ModelSchema.from_list(SCHEMA.to_list()).digest == SCHEMA.digest


def test_the_vector_holds_the_aggregated_tensors_in_the_order_of_their_names():
    vector = SCHEMA.flatten(MODEL)
    assert vector.tolist() == [1.0, 1.0, 1.0, *range(12)]
    moved = {**MODEL, "weight": MODEL["weight"] + 2, "steps": np.array(9), "statistics": np.ones(4)}
    assert SCHEMA.difference(moved, MODEL).tolist() == [0.0] * 3 + [2.0] * 12


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (specs(weight=("weight", (1, 4), "float32")), "weight"),
        (specs(weight=("weight", (4, 3), "float32")), "weight"),
        (specs(weight=("weight", (12,), "float32")), "weight"),
        (specs(bias=None), "bias"),
        (specs(extra=("extra", (1,), "float32")), "extra"),
        (specs(steps=("steps", (), "int64")), "steps"),
        (specs(bias=("bias", (3,), "float64")), "bias"),
    ],
)
def test_an_update_of_another_shape_is_refused_by_the_tensors_name(given, named):
    SCHEMA.check(specs())
    with pytest.raises(InvalidInput, match=named):
        SCHEMA.check(given)


def test_integers_cannot_be_averaged():
    with pytest.raises(InvalidInput, match="cannot have the rule mean"):
        ModelSchema.of(MODEL, {"steps": "mean"})
    with pytest.raises(InvalidInput, match="must have 1 to"):
        ModelSchema.of({"steps": MODEL["steps"]})
