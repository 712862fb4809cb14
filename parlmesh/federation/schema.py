"""The tensors of a federated model, the rule of each, and the flat vector that updates consist of."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

MEAN, KEEP, LOCAL = "mean", "keep", "local"
RULES = (MEAN, KEEP, LOCAL)
_DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
_LONGEST_MESSAGE = 500
_LARGEST_VALUES = 1 << 31


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor. mean: aggregated; keep: the server's version; local: each node's own, never sent."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    rule: str = MEAN

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


class ModelSchema:
    """Tensors sorted by name. Only those with the rule `mean` are part of the vector."""

    def __init__(self, tensors: Sequence[TensorSpec]) -> None:
        self.tensors = tuple(sorted(tensors, key=lambda tensor: tensor.name))
        for tensor in self.tensors:
            _check(tensor)
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) != len(names):
            raise _refusal("a model must not have two tensors with the same name")
        self.joined = tuple(tensor for tensor in self.tensors if tensor.rule == MEAN)
        self.size = sum(tensor.size for tensor in self.joined)
        if not 0 < self.size <= _LARGEST_VALUES:
            raise _refusal(f"a model must have 1 to {_LARGEST_VALUES} values to aggregate, got {self.size}")

    @classmethod
    def of(cls, tensors: Mapping[str, Array], rules: Mapping[str, str] | None = None) -> "ModelSchema":
        """The schema of a model; without a rule, floats are averaged and all others kept."""
        rules = rules or {}
        return cls(
            [
                TensorSpec(
                    name,
                    tuple(array.shape),
                    array.dtype.name,
                    rules.get(name, KEEP if array.dtype.kind in "biu" else MEAN),
                )
                for name, array in tensors.items()
            ]
        )

    @cached_property
    def digest(self) -> bytes:
        """Equal if names, shapes, types and rules are equal."""
        text = json.dumps([[t.name, list(t.shape), t.dtype, t.rule] for t in self.tensors])
        return hashlib.sha256(text.encode()).digest()

    def check(self, tensors: Sequence[TensorSpec]) -> None:
        """Raises InvalidInput with the first tensor that is missing, unexpected or different in an update."""
        given = {tensor.name: tensor for tensor in tensors}
        for wanted in self.joined:
            found = given.pop(wanted.name, None)
            if found is None:
                raise _refusal(f"the update has no tensor {wanted.name}", tensor=wanted.name)
            if found.shape != wanted.shape:
                raise _refusal(
                    f"tensor {wanted.name} must have the shape {list(wanted.shape)}, got {list(found.shape)}",
                    tensor=wanted.name,
                )
            if found.dtype != "float32":
                raise _refusal(f"tensor {wanted.name} must come as float32, got {found.dtype}", tensor=wanted.name)
        for name in given:
            raise _refusal(f"the model has no tensor {name} to aggregate", tensor=name)
        if [tensor.name for tensor in tensors] != [tensor.name for tensor in self.joined]:
            raise _refusal("the tensors of an update must be sorted by name, each once")

    def flatten(self, tensors: Mapping[str, Array]) -> Array:
        """The averaged tensors as one float32 vector."""
        vector = np.empty(self.size, np.float32)
        start = 0
        for spec in self.joined:
            vector[start : start + spec.size] = tensors[spec.name].reshape(-1)
            start += spec.size
        return vector

    def difference(self, new: Mapping[str, Array], base: Mapping[str, Array]) -> Array:
        """new − base over the averaged tensors, float32."""
        vector = np.empty(self.size, np.float32)
        start = 0
        for spec in self.joined:
            part = vector[start : start + spec.size].reshape(spec.shape)
            np.subtract(new[spec.name], base[spec.name], out=part, casting="unsafe")
            start += spec.size
        return vector

    def local(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """The tensors that never leave a node."""
        return {tensor.name: tensors[tensor.name] for tensor in self.tensors if tensor.rule == LOCAL}

    def to_list(self) -> list[dict[str, object]]:
        """The JSON form for files and tasks."""
        return [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "rule": t.rule} for t in self.tensors]

    @classmethod
    def from_list(cls, rows: Sequence[Mapping[str, object]]) -> "ModelSchema":
        """The inverse of `to_list`."""
        specs = []
        for row in rows:
            shape = row["shape"]
            assert isinstance(shape, list)
            specs.append(TensorSpec(str(row["name"]), tuple(map(int, shape)), str(row["dtype"]), str(row["rule"])))
        return cls(specs)


def _check(tensor: TensorSpec) -> None:
    if tensor.rule not in RULES:
        raise _refusal(f"rule of {tensor.name} must be one of {', '.join(RULES)}, got {tensor.rule!r}")
    if tensor.dtype not in _DTYPES:
        raise _refusal(f"tensor {tensor.name} has dtype {tensor.dtype!a:.40}; allowed are {', '.join(_DTYPES)}")
    if tensor.rule == MEAN and tensor.dtype != "float32":
        raise _refusal(f"tensor {tensor.name} of {tensor.dtype} cannot have the rule mean; only float32 can")
    if any(size < 0 for size in tensor.shape):
        raise _refusal(f"tensor {tensor.name} has a negative dimension in {list(tensor.shape)}")


def _refusal(message: str, **metadata: object) -> InvalidInput:
    # A damaged file may contain a long text in place of a name.
    shown = message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"
    return InvalidInput(shown, reason="UPDATE_SCHEMA", **metadata)
