"""The one tensor codec: raw little-endian bytes in C order."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from parlmesh.errors import InvalidInput, ResourceExhausted
from parlmesh.types import Array
from parlmesh.v1 import tensor_pb2 as pb

_DTYPES: Mapping[int, np.dtype] = {
    pb.DATA_TYPE_BOOL: np.dtype(np.bool_),
    pb.DATA_TYPE_UINT8: np.dtype("u1"),
    pb.DATA_TYPE_INT8: np.dtype("i1"),
    pb.DATA_TYPE_INT16: np.dtype("<i2"),
    pb.DATA_TYPE_INT32: np.dtype("<i4"),
    pb.DATA_TYPE_INT64: np.dtype("<i8"),
    pb.DATA_TYPE_FLOAT16: np.dtype("<f2"),
    pb.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    pb.DATA_TYPE_FLOAT64: np.dtype("<f8"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorLimits:
    """What a receiver takes; anything larger is refused before it is allocated."""

    max_bytes: int = 64 << 20
    max_tensors: int = 256
    max_rank: int = 8
    max_name: int = 200


DEFAULT_LIMITS = TensorLimits()


def tensor_to_proto(name: str, array: Array) -> pb.Tensor:
    """InvalidInput when the element type has no place on the wire."""
    array = np.asarray(array)
    dtype = array.dtype.newbyteorder("<") if array.dtype.itemsize > 1 else array.dtype
    code = _CODES.get(dtype)
    if code is None:
        known = ", ".join(str(known) for known in _CODES)
        raise InvalidInput(
            f"tensor {name} has dtype {array.dtype}; allowed are {known}", reason="TENSOR_DTYPE", tensor=name
        )
    data = array.astype(dtype, order="C", copy=False).tobytes()
    return pb.Tensor(name=name, dtype=pb.DataType.ValueType(code), shape=array.shape, data=data)


def tensor_from_proto(tensor: pb.Tensor, limits: TensorLimits = DEFAULT_LIMITS) -> Array:
    """A read-only view of the message's bytes: copy what must outlive it."""
    name = tensor.name
    if not name or len(name) > limits.max_name:
        raise InvalidInput(
            f"tensor name must have 1 to {limits.max_name} characters, got {len(name)}", reason="TENSOR_NAME"
        )
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise InvalidInput(f"tensor {name} has unknown dtype {tensor.dtype}", reason="TENSOR_DTYPE", tensor=name)
    shape = tuple(tensor.shape)
    if len(shape) > limits.max_rank:
        raise InvalidInput(
            f"tensor {name} has {len(shape)} dimensions; the limit is {limits.max_rank}",
            reason="TENSOR_SHAPE",
            tensor=name,
        )
    if any(size < 0 for size in shape):
        raise InvalidInput(
            f"tensor {name} has a negative dimension in {list(shape)}", reason="TENSOR_SHAPE", tensor=name
        )
    # Python's integers do not overflow, so an absurd shape is refused and never wraps round.
    expected = math.prod(shape) * dtype.itemsize
    if expected > limits.max_bytes:
        raise ResourceExhausted(
            f"tensor {name} of shape {list(shape)} needs {expected} bytes; the limit is {limits.max_bytes}",
            reason="TENSOR_TOO_LARGE",
            tensor=name,
            limit=limits.max_bytes,
        )
    if len(tensor.data) != expected:
        raise InvalidInput(
            f"tensor {name} of {dtype}{list(shape)} must have {expected} bytes, got {len(tensor.data)}",
            reason="TENSOR_LENGTH",
            tensor=name,
        )
    return np.frombuffer(tensor.data, dtype).reshape(shape)


def tensors_from_proto(tensors: Iterable[pb.Tensor], limits: TensorLimits = DEFAULT_LIMITS) -> dict[str, Array]:
    """All tensors of one message by name; the limit on bytes holds for them together."""
    found: dict[str, Array] = {}
    total = 0
    for tensor in tensors:
        if len(found) == limits.max_tensors:
            raise ResourceExhausted(f"more than {limits.max_tensors} tensors in one message", reason="TENSOR_COUNT")
        if tensor.name in found:
            raise InvalidInput(f"tensor {tensor.name} is there twice", reason="TENSOR_NAME", tensor=tensor.name)
        found[tensor.name] = tensor_from_proto(tensor, limits)
        total += len(tensor.data)
        if total > limits.max_bytes:
            raise ResourceExhausted(
                f"tensors up to {tensor.name} have {total} bytes; the limit is {limits.max_bytes}",
                reason="TENSOR_TOO_LARGE",
                tensor=tensor.name,
                limit=limits.max_bytes,
            )
    return found
