"""Python values as a JSON object with arrays beside it, and back. What goes in comes out, types included.

Only the order of a dict's keys is not kept: JSON objects have none.
"""

import math
from typing import Any

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

_TENSOR, _TUPLE, _BYTES, _ITEMS, _FLOAT, _INT = "$tensor", "$tuple", "$bytes", "$items", "$float", "$int"
# JSON's numbers travel as doubles: beyond this they are not exact, and 4.0 would come back as 4.
_EXACT = 1 << 53
_LONGEST_NUMBER = 4300
_DEEPEST = 64


def pack(value: dict[str, Any], what: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """The object and its arrays; InvalidInput says which part of `what` cannot be sent."""
    tensors: dict[str, Array] = {}
    return {name: _packed(part, tensors, f"{what}: {name}", 0) for name, part in value.items()}, tensors


def unpack(value: dict[str, Any], tensors: dict[str, Array]) -> dict[str, Any]:
    """The inverse of `pack`; InvalidInput when it is the inverse of nothing."""
    return {name: _unpacked(part, tensors) for name, part in value.items()}


def _packed(value: Any, tensors: dict[str, Array], where: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise InvalidInput(f"{where:.200} is nested deeper than {_DEEPEST}", reason="INVALID_PARAMETERS")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if -_EXACT <= value <= _EXACT else {_INT: str(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) and not value.is_integer() else {_FLOAT: str(value)}
    if isinstance(value, np.ndarray):
        return {_TENSOR: _added(value, tensors)}
    if isinstance(value, (bytes, bytearray)):
        return {_BYTES: _added(np.frombuffer(bytes(value), np.uint8), tensors)}
    if isinstance(value, (list, tuple)):
        parts = [_packed(part, tensors, f"{where}[{index}]", depth + 1) for index, part in enumerate(value)]
        return {_TUPLE: parts} if isinstance(value, tuple) else parts
    if isinstance(value, dict):
        return _packed_dict(value, tensors, where, depth)
    raise InvalidInput(
        f"{where} is a {type(value).__name__}; None, bool, int, float, str, bytes, numpy arrays and lists, tuples and "
        "dicts of these can be sent",
        reason="INVALID_PARAMETERS",
    )


def _packed_dict(value: dict[Any, Any], tensors: dict[str, Array], where: str, depth: int) -> dict[str, Any]:
    parts = [(key, _packed(part, tensors, f"{where}[{key!r}]", depth + 1)) for key, part in value.items()]
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return dict(parts)
    return {_ITEMS: [[_packed(key, tensors, f"{where}: a key", depth + 1), part] for key, part in parts]}


def _added(array: Array, tensors: dict[str, Array]) -> str:
    name = str(len(tensors))
    tensors[name] = array
    return name


def _unpacked(value: Any, tensors: dict[str, Array]) -> Any:
    if isinstance(value, list):
        return [_unpacked(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((mark, part),) = value.items()
        if mark in (_TENSOR, _BYTES):
            array = _named(part, tensors)
            return array.tobytes() if mark == _BYTES else array
        if mark in (_TUPLE, _ITEMS) and isinstance(part, list):
            parts = (_unpacked(each, tensors) for each in part)
            return tuple(parts) if mark == _TUPLE else dict(map(_item, parts))
        if mark in (_FLOAT, _INT):
            return _number(mark, part)
    return {key: _unpacked(part, tensors) for key, part in value.items()}


def _named(name: Any, tensors: dict[str, Array]) -> Array:
    if not isinstance(name, str) or name not in tensors:
        raise InvalidInput(f"there is no tensor {name!r:.40}", reason="INVALID_PARAMETERS")
    return tensors[name]


def _item(pair: Any) -> tuple[Any, Any]:
    try:
        key, value = pair
        hash(key)
    except (TypeError, ValueError):
        raise InvalidInput(f"{pair!r:.40} is no key with its value", reason="INVALID_PARAMETERS") from None
    return key, value


def _number(mark: str, text: Any) -> float | int:
    try:
        if not isinstance(text, str) or len(text) > _LONGEST_NUMBER:
            raise ValueError(text)
        return int(text) if mark == _INT else float(text)
    except ValueError:
        raise InvalidInput(f"{text!r:.40} is no number", reason="INVALID_PARAMETERS") from None
