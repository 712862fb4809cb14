"""A task's parameters and tensors, to and from protobuf."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf import struct_pb2

from parlmesh.blobs import Reference
from parlmesh.blobs.store import Tensors
from parlmesh.errors import InvalidInput
from parlmesh.limits import LIST_LEVELS, MOST_LEVELS, OBJECT_LEVELS
from parlmesh.types import Array
from parlmesh.v1 import task_pb2 as pb

from .tensors import DEFAULT_LIMITS, TensorLimits, reference_from_proto, tensor_to_proto, tensors_from_proto

_REASON = "PARAMETERS"
# JSON, and so Struct, has only doubles: integers beyond this would be rounded.
_EXACT = 1 << 53
_SIMPLE = frozenset({str, float, bool, type(None)})


def payload_to_proto(parameters: Mapping[str, Any], tensors: Tensors | None = None) -> pb.Payload:
    """Raises InvalidInput when the parameters are not a JSON object."""
    payload = pb.Payload()
    if parameters:
        payload.parameters.CopyFrom(struct_to_proto(parameters))
    for name, array in (tensors or {}).items():
        payload.tensors.append(tensor_to_proto(name, array))
    return payload


def payload_from_proto(
    payload: pb.Payload, limits: TensorLimits = DEFAULT_LIMITS, load: Callable[[Reference], Array] | None = None
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Parameters and tensors; a tensor is a read-only view of the message, or of a blob that `load` opens."""
    return struct_from_proto(payload.parameters), tensors_from_proto(payload.tensors, limits, load)


def references_in(payload: pb.Payload) -> list[Reference]:
    """The arrays that are kept in blobs."""
    return [reference_from_proto(tensor) for tensor in payload.tensors if tensor.blob]


def struct_to_proto(values: Mapping[str, Any]) -> struct_pb2.Struct:
    """Raises InvalidInput with the key of a value that JSON cannot hold or would change."""
    struct = struct_pb2.Struct()
    if type(values) is not dict and not isinstance(values, Mapping):
        raise InvalidInput(f"parameters must be a JSON object, got {_shown(values)}", reason=_REASON)
    try:
        struct.update(values if _as_it_is(values.values(), MOST_LEVELS) else _object(values, "", MOST_LEVELS))
    except (ValueError, TypeError, AttributeError) as error:  # such as text that is not UTF-8
        _object(values, "", MOST_LEVELS)
        raise InvalidInput(f"parameters must be a JSON object: {error}", reason=_REASON) from error
    return struct


def _object(values: Mapping[Any, Any], path: str, levels: int) -> dict[str, Any]:
    """`levels` is how many messages may still be within each other."""
    plain: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            where = f" of {path!r}" if path else ""
            raise InvalidInput(f"the key {_shown(key)}{where} must be text", reason=_REASON)
        plain[key] = _plain(value, f"{path}.{key}" if path else key, levels)
    return plain


def _as_it_is(values: Iterable[Any], levels: int) -> bool:
    """Whether Struct takes these values unchanged, as it does most; Struct itself finds wrong keys."""
    if levels < 0:
        return False
    for value in values:
        kind = type(value)
        if kind in _SIMPLE or (kind is int and -_EXACT <= value <= _EXACT):
            continue
        if kind is list and _as_it_is(value, levels - LIST_LEVELS):
            continue
        if kind is not dict or not _as_it_is(value.values(), levels - OBJECT_LEVELS):
            return False
    return True


def _plain(value: Any, path: str, levels: int) -> Any:
    """The value as Struct takes it: tuples as lists, numpy's scalars as Python's."""
    if levels < 0:
        raise InvalidInput(
            f"{path:.60} is nested too deeply, or contains itself: at most {MOST_LEVELS // LIST_LEVELS} lists or "
            f"{MOST_LEVELS // OBJECT_LEVELS} objects may be within each other",
            reason=_REASON,
        )
    if value is None or isinstance(value, (str, float, bool)):
        return value
    if isinstance(value, (int, np.integer)):
        number = int(value)
        if not -_EXACT <= number <= _EXACT:
            text = f"{path!r} is {number}; integers go from -2^53 to 2^53 ({_EXACT}): send larger ones as text"
            raise InvalidInput(text, reason=_REASON, key=path)
        return number
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.floating):
        return float(value)
    if isinstance(value, Mapping):
        return _object(value, path, levels - OBJECT_LEVELS)
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{index}]", levels - LIST_LEVELS) for index, item in enumerate(value)]
    hint = "; arrays travel as tensors" if isinstance(value, np.ndarray) else ""
    raise InvalidInput(
        f"{path!r} is {_shown(value)}; a value must be text, a number, true, false, null, a list or an object{hint}",
        reason=_REASON,
        key=path,
    )


def _shown(value: object) -> str:
    return f"{value!r:.60} ({type(value).__name__})"


def struct_from_proto(struct: struct_pb2.Struct) -> dict[str, Any]:
    """Numbers without a fraction come back as int: JSON, and so Struct, knows only one kind."""
    return {name: _value(value) for name, value in struct.fields.items()}


def _value(value: struct_pb2.Value) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return struct_from_proto(value.struct_value)
        case "list_value":
            return [_value(item) for item in value.list_value.values]
        case _:
            return None
