"""The one tensor codec: raw little-endian bytes in C order, written and read in place without copies."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from parlmesh.blobs import Reference, check_name
from parlmesh.errors import InvalidInput, ResourceExhausted
from parlmesh.limits import MOST_TENSORS
from parlmesh.types import Array
from parlmesh.v1 import tensor_pb2 as pb
from parlmesh.wire.fields import field_head, take_out

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
_DATA = pb.Tensor.DESCRIPTOR.fields_by_name["data"].number
_PADDING = pb.Tensor.DESCRIPTOR.fields_by_name["padding"].number
_ALIGNMENT = 8
_LONGEST_KEPT_HEAD = 512


Layout = tuple[np.dtype, tuple[int, ...], int]
"""Element type, shape and bytes of a tensor."""


@dataclass(frozen=True, slots=True)
class TensorLimits:
    """The limits of a receiver; anything larger is refused before it is allocated."""

    max_bytes: int = 64 << 20
    max_tensors: int = MOST_TENSORS
    max_rank: int = 8
    max_name: int = 200


DEFAULT_LIMITS = TensorLimits()
_REFERENCE_LIMITS = TensorLimits(max_bytes=1 << 40)


def tensor_to_proto(name: str, array: Array | Reference) -> pb.Tensor:
    """InvalidInput for an element type that the wire does not have."""
    if isinstance(array, Reference):
        return pb.Tensor(name=name, dtype=_code(_known(name, array.dtype)), shape=array.shape, blob=array.name)
    array = _wire_form(name, array)
    return pb.Tensor(name=name, dtype=_code(array.dtype), shape=array.shape, data=array.tobytes())


def tensor_to_parts(field: int, name: str, array: Array, position: int) -> tuple[bytes, memoryview]:
    """A tensor as the field of another message: everything before its elements, and the elements, not copied.

    The field starts at `position` in the whole message, and is padded so that its elements are aligned there.
    """
    if array.dtype not in _CODES or not array.flags.c_contiguous:
        array = np.ascontiguousarray(_wire_form(name, array))
    head = _padded_head(field, name, array.dtype, array.shape, array.nbytes, position % _ALIGNMENT)
    return head, array.reshape(-1).view(np.uint8).data


# The columns of a run have the same names, types and shapes from trajectory to trajectory.
@lru_cache(maxsize=1024)
def _padded_head(field: int, name: str, dtype: np.dtype, shape: tuple[int, ...], size: int, phase: int) -> bytes:
    head = _head(field, name, dtype, shape, size, 0)
    missing = -(phase + len(head)) % _ALIGNMENT
    return _head(field, name, dtype, shape, size, missing) if missing else head


def _head(field: int, name: str, dtype: np.dtype, shape: tuple[int, ...], size: int, padding: int) -> bytes:
    head = pb.Tensor(name=name, dtype=_code(dtype), shape=shape).SerializeToString()
    if padding:
        # The padding's own head takes two bytes, so one missing byte is padded as nine.
        head += field_head(_PADDING, (padding - 2) % _ALIGNMENT) + bytes((padding - 2) % _ALIGNMENT)
    head += field_head(_DATA, size)
    return field_head(field, len(head) + size) + head


def _code(dtype: np.dtype) -> pb.DataType.ValueType:
    return pb.DataType.ValueType(_CODES[dtype])


def _wire_form(name: str, array: Array) -> Array:
    array = np.asarray(array)
    return array.astype(_known(name, array.dtype), order="C", copy=False)


def _known(name: str, given: np.dtype) -> np.dtype:
    dtype = given.newbyteorder("<") if given.itemsize > 1 else given
    if dtype not in _CODES:
        known = ", ".join(str(known) for known in _CODES)
        raise InvalidInput(f"tensor {name} has dtype {given}; allowed are {known}", reason="TENSOR_DTYPE", tensor=name)
    return dtype


def reference_from_proto(tensor: pb.Tensor) -> Reference:
    """A tensor whose elements are in a blob."""
    dtype, shape, size = _layout(tensor, _REFERENCE_LIMITS)
    check_name(tensor.blob)
    if tensor.data or not size:
        raise InvalidInput(
            f"tensor {tensor.name} must have either a blob or data, and a blob may not be empty", reason="TENSOR_LENGTH"
        )
    return Reference(tensor.blob, dtype, shape)


def tensor_from_bytes(message: memoryview, limits: TensorLimits = DEFAULT_LIMITS) -> tuple[str, Array]:
    """Name and elements of a serialised tensor; the elements are not copied if they are aligned."""
    head, found = take_out(message, _DATA)
    kept = len(head) <= _LONGEST_KEPT_HEAD
    name, layout = (_kept_layout if kept else _layout_from_bytes)(head, limits)
    # If a field occurs several times, the last one counts.
    data = found[-1] if found else memoryview(b"")
    return name, _elements(name, data, *layout)


def _layout_from_bytes(head: bytes, limits: TensorLimits) -> tuple[str, Layout]:
    tensor = pb.Tensor.FromString(head)
    if tensor.blob:
        raise _is_in_a_blob(tensor.name)
    return tensor.name, _layout(tensor, limits)


# The columns of a run have the same names, types and shapes from trajectory to trajectory.
_kept_layout = lru_cache(maxsize=1024)(_layout_from_bytes)


def tensor_from_proto(
    tensor: pb.Tensor, limits: TensorLimits = DEFAULT_LIMITS, load: Callable[[Reference], Array] | None = None
) -> Array:
    """A read-only view of the message's bytes, or of a blob: copy any part that must outlive it."""
    if tensor.blob:
        if load is None:
            raise _is_in_a_blob(tensor.name)
        return load(reference_from_proto(tensor))
    dtype, shape, expected = _layout(tensor, limits)
    # Read once: the message makes another copy every time.
    return _elements(tensor.name, tensor.data, dtype, shape, expected)


def _is_in_a_blob(name: str) -> InvalidInput:
    text = f"tensor {name} names a blob; only arguments and results of tasks may"
    return InvalidInput(text, reason="TENSOR_BLOB", tensor=name)


def _elements(name: str, data: bytes | memoryview, dtype: np.dtype, shape: tuple[int, ...], expected: int) -> Array:
    if len(data) != expected:
        raise InvalidInput(
            f"tensor {name} of {dtype}{list(shape)} must have {expected} bytes, got {len(data)}",
            reason="TENSOR_LENGTH",
            tensor=name,
        )
    array = np.frombuffer(data, dtype).reshape(shape)
    if not array.flags.aligned:
        array = array.copy()
        array.flags.writeable = False
    return array


def _layout(tensor: pb.Tensor, limits: TensorLimits) -> Layout:
    """Element type, shape and bytes, before anything is allocated."""
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
    if shape and min(shape) < 0:
        raise InvalidInput(
            f"tensor {name} has a negative dimension in {list(shape)}", reason="TENSOR_SHAPE", tensor=name
        )
    # Python's integers do not overflow, so an absurd shape is refused and never wraps round.
    expected = math.prod(shape) * dtype.itemsize
    # A dimension of 0 does not excuse the others: numpy refuses a shape whose other dimensions are too large.
    needed = expected or math.prod(size or 1 for size in shape) * dtype.itemsize
    if needed > limits.max_bytes:
        raise ResourceExhausted(
            f"tensor {name} of shape {list(shape)} needs {needed} bytes; the limit is {limits.max_bytes}",
            reason="TENSOR_TOO_LARGE",
            tensor=name,
            limit=limits.max_bytes,
        )
    return dtype, shape, expected


def tensors_from_proto(
    tensors: Iterable[pb.Tensor],
    limits: TensorLimits = DEFAULT_LIMITS,
    load: Callable[[Reference], Array] | None = None,
) -> dict[str, Array]:
    """All tensors of one message by name; the limit on bytes applies to them together. `load` opens blobs."""
    return _by_name(((each.name, tensor_from_proto(each, limits, load), bool(each.blob)) for each in tensors), limits)


def tensors_from_bytes(messages: Iterable[memoryview], limits: TensorLimits = DEFAULT_LIMITS) -> dict[str, Array]:
    """Reads serialised tensors."""
    return _by_name(((*tensor_from_bytes(each, limits), False) for each in messages), limits)


def _by_name(tensors: Iterable[tuple[str, Array, bool]], limits: TensorLimits) -> dict[str, Array]:
    found: dict[str, Array] = {}
    total = 0
    for name, array, is_blob in tensors:
        if len(found) == limits.max_tensors:
            raise ResourceExhausted(f"more than {limits.max_tensors} tensors in one message", reason="TENSOR_COUNT")
        if name in found:
            raise InvalidInput(f"tensor {name} appears twice", reason="TENSOR_NAME", tensor=name)
        found[name] = array
        total += 0 if is_blob else array.nbytes
        if total > limits.max_bytes:
            raise ResourceExhausted(
                f"tensors up to {name} have {total} bytes; the limit is {limits.max_bytes}",
                reason="TENSOR_TOO_LARGE",
                tensor=name,
                limit=limits.max_bytes,
            )
    return found
