"""A policy as bytes: a safetensors file whose metadata holds the specification."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .policy_spec import PolicySpec

METADATA = "__metadata__"
_ENVIRONMENT = "environment"
_LENGTH_BYTES = 8
_LARGEST_HEADER_BYTES = 1 << 20


def pack_policy(spec: PolicySpec, weights: Mapping[str, Array]) -> bytes:
    """Equal inputs give equal bytes."""
    tensors = {name: np.ascontiguousarray(weights[name]) for name in sorted(weights)}
    return safetensors.numpy.save(tensors, metadata={"policy": spec.to_json()})


def unpack_policy(data: bytes) -> tuple[PolicySpec, dict[str, Array]]:
    """The inverse of `pack_policy`; raises InvalidInput for any other bytes."""
    try:
        weights = safetensors.numpy.load(data)
    except safetensors.SafetensorError as error:
        raise InvalidInput(f"policy of {len(data)} bytes is not a safetensors file: {error}") from error
    header, _ = split_file(data)
    return PolicySpec.from_json(header.get(METADATA, {}).get("policy", "")), weights


def with_environment(data: bytes, environment: Mapping[str, Any]) -> bytes:
    """The same policy with the environment it was trained in; raises InvalidInput if that is more than JSON."""
    header, body = split_file(data)
    try:
        text = json.dumps(environment, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the policy's environment cannot be saved: {error}", reason="ENVIRONMENT") from error
    header[METADATA] = {**header.get(METADATA, {}), _ENVIRONMENT: text}
    return join_file(header, [body])


def environment_in(data: bytes) -> dict[str, Any]:
    """The environment that `with_environment` added; empty if there is none."""
    header, _ = split_file(data)
    try:
        found = json.loads(header.get(METADATA, {}).get(_ENVIRONMENT, "{}"))
    except (AttributeError, TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def split_file(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """Header and body of a safetensors file."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if length > _LARGEST_HEADER_BYTES:
        raise InvalidInput(f"policy header has {length} bytes; the limit is {_LARGEST_HEADER_BYTES}")
    try:
        header = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"policy of {len(data)} bytes is not a safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise InvalidInput(f"policy header must be an object, got {type(header).__name__}")
    return header, memoryview(data)[_LENGTH_BYTES + length :]


def join_file(header: Mapping[str, Any], parts: Iterable[bytes | memoryview]) -> bytes:
    """The inverse of `split_file`."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, *parts])
