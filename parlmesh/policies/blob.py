"""A policy as bytes: a safetensors file whose metadata holds the specification."""

import json
from collections.abc import Mapping

import numpy as np
import safetensors
import safetensors.numpy

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .spec import PolicySpec

_HEADER_LENGTH_BYTES = 8
_LARGEST_HEADER_BYTES = 1 << 20


def pack_policy(spec: PolicySpec, weights: Mapping[str, Array]) -> bytes:
    """Equal inputs give equal bytes."""
    tensors = {name: np.ascontiguousarray(weights[name]) for name in sorted(weights)}
    return safetensors.numpy.save(tensors, metadata={"policy": spec.to_json()})


def unpack_policy(data: bytes) -> tuple[PolicySpec, dict[str, Array]]:
    """The inverse of `pack_policy`; InvalidInput when the bytes are anything else."""
    try:
        weights = safetensors.numpy.load(data)
    except safetensors.SafetensorError as error:
        raise InvalidInput(f"policy of {len(data)} bytes is not a safetensors file: {error}") from error
    length = int.from_bytes(data[:_HEADER_LENGTH_BYTES], "little")
    if length > _LARGEST_HEADER_BYTES:
        raise InvalidInput(f"policy header has {length} bytes; the limit is {_LARGEST_HEADER_BYTES}")
    header = json.loads(data[_HEADER_LENGTH_BYTES : _HEADER_LENGTH_BYTES + length])
    return PolicySpec.from_json(header.get("__metadata__", {}).get("policy", "")), weights
