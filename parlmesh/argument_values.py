"""Converts Python values to a JSON object with arrays beside it, and back. Values and types survive the round trip.

Only the order of a dict's keys is lost, since JSON objects have none.
"""

import asyncio
import concurrent.futures
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from parlmesh.blobs import Reference, check_name
from parlmesh.errors import InvalidInput
from parlmesh.limits import LIST_LEVELS, MOST_LEVELS, MOST_TENSORS, OBJECT_LEVELS
from parlmesh.types import Array

RESULT = "$result"
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""Of the arrays that can be sent."""
_TENSOR, _TUPLE, _BYTES, _ITEMS, _FLOAT, _INT = "$tensor", "$tuple", "$bytes", "$items", "$float", "$int"
# JSON numbers travel as doubles: integers beyond this are not exact, and 4.0 would come back as 4.
_EXACT = 1 << 53
_LONGEST_NUMBER = 4300
# Scalars of numpy that Python has as well. A time would become a number or a date, a record a tuple.
_NUMBERS = (np.bool_, np.integer, np.floating, np.str_, np.bytes_)
# A subclass means more than its elements, such as the mask of a masked array; a memmap is where they are.
_ARRAYS = (np.ndarray, np.memmap)
_FUTURES = (asyncio.Future, concurrent.futures.Future)
# A tuple travels as a list in an object, a dict with keys that are no plain text as a list of lists in one.
_TUPLE_LEVELS = OBJECT_LEVELS + LIST_LEVELS
_ITEMS_LEVELS = OBJECT_LEVELS + 2 * LIST_LEVELS
# The innermost value may be an object itself, such as {"$float": "2.0"}; arguments are in a list.
_LEVELS = MOST_LEVELS - OBJECT_LEVELS
_SURE = _LEVELS - LIST_LEVELS

Arguments: TypeAlias = tuple[dict[str, Any], dict[str, Array]]
"""A JSON object and the arrays beside it."""


def pack(value: dict[str, Any], what: str) -> Arguments:
    """The object and its arrays. InvalidInput names the part of `what` that cannot be sent.

    A task's future stands for the result of that task.
    """
    tensors: dict[str, Array] = {}
    return {name: _packed(part, tensors, f"{what}: {name}", _LEVELS) for name, part in value.items()}, tensors


def unpack(value: dict[str, Any], tensors: dict[str, Array]) -> dict[str, Any]:
    """The inverse of `pack`; raises InvalidInput for values that `pack` never makes."""
    return {name: _unpacked(part, tensors) for name, part in value.items()}


def results_in(value: Any) -> list[str]:
    """Ids of the tasks whose results a JSON value refers to."""
    if isinstance(value, list):
        return [found for part in value for found in results_in(part)]
    if not isinstance(value, dict):
        return []
    if len(value) == 1 and isinstance(task_id := value.get(RESULT), str):
        return [task_id]
    return [found for part in value.values() for found in results_in(part)]


def futures_in(value: Any) -> list[object]:
    """The futures that `pack` finds in a value. It keeps only their ids, which hold no result."""
    if isinstance(value, (list, tuple)):
        return [found for part in value for found in futures_in(part)]
    if isinstance(value, dict):
        return [found for pair in value.items() for found in futures_in(pair)]
    return [value] if isinstance(value, _FUTURES) else []


def with_results(parameters: dict[str, Any], tensors: dict[str, Array], results: Mapping[str, Arguments]) -> Arguments:
    """The parameters with every result filled in: a function's return value, or another handler's whole result.

    Arrays of the results are named TASK_ID/NAME.
    """
    joined = dict(tensors)
    for task_id, (_, arrays) in results.items():
        for name, array in arrays.items():
            if joined.setdefault(f"{task_id}/{name}", array) is not array:
                raise InvalidInput(
                    f"tensor {task_id}/{name} is also the name of an array in the result of task {task_id!r}; "
                    "choose another",
                    reason="INVALID_PARAMETERS",
                )
    return {name: _placed(part, results) for name, part in parameters.items()}, joined


def _placed(value: Any, results: Mapping[str, Arguments]) -> Any:
    if isinstance(value, list):
        return [_placed(part, results) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and isinstance(task_id := value.get(RESULT), str) and task_id in results:
        answer = _renamed(results[task_id][0], task_id)
        return answer["value"] if answer.keys() == {"value"} else answer
    return {key: _placed(part, results) for key, part in value.items()}


def _renamed(value: Any, task_id: str) -> Any:
    if isinstance(value, list):
        return [_renamed(part, task_id) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((mark, part),) = value.items()
        if mark in (_TENSOR, _BYTES):
            return {mark: f"{task_id}/{part}"}
    return {key: _renamed(part, task_id) for key, part in value.items()}


def _packed(value: Any, tensors: dict[str, Array], where: str, levels: int) -> Any:
    """`levels` is how many messages may still be within each other."""
    if levels < 0:
        raise InvalidInput(
            f"{where:.200} is nested too deeply, or contains itself: at most {_SURE // LIST_LEVELS} lists, "
            f"{_SURE // OBJECT_LEVELS} dicts or {_SURE // _TUPLE_LEVELS} tuples may be within each other",
            reason="INVALID_PARAMETERS",
        )
    if isinstance(value, _NUMBERS) and not isinstance(value, np.timedelta64):
        value = value.item()
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if -_EXACT <= value <= _EXACT else {_INT: _digits(value, where)}
    if isinstance(value, float):
        return value if math.isfinite(value) and not value.is_integer() else {_FLOAT: float.__repr__(value)}
    if isinstance(value, Reference) or type(value) in _ARRAYS:
        _check_dtype(value, where)
        return {_TENSOR: _added(value, tensors, where)}
    if isinstance(value, (bytes, bytearray)):
        return {_BYTES: _added(np.frombuffer(bytes(value), np.uint8), tensors, where)}
    if isinstance(value, (list, tuple)):
        left = levels - (_TUPLE_LEVELS if isinstance(value, tuple) else LIST_LEVELS)
        parts = [_packed(part, tensors, f"{where}[{index}]", left) for index, part in enumerate(value)]
        return {_TUPLE: parts} if isinstance(value, tuple) else parts
    if isinstance(value, dict):
        return _packed_dict(value, tensors, where, levels)
    if isinstance(value, _FUTURES):
        return {RESULT: _task_of(value, where)}
    if isinstance(value, np.ndarray):
        raise _more_than_an_array(value, where)
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        raise InvalidInput(
            f"{where} is a {type(value).__module__.partition('.')[0]} {type(value).__name__}; send numpy.asarray(it)",
            reason="INVALID_PARAMETERS",
        )
    raise InvalidInput(
        f"{where} is a {type(value).__name__}; None, bool, int, float, str, bytes, numpy arrays and lists, tuples and "
        "dicts of these can be sent",
        reason="INVALID_PARAMETERS",
    )


def check_array(array: Any, where: str) -> None:
    """InvalidInput for an array that would arrive as something else, or not at all."""
    if type(array) in _ARRAYS:
        _check_dtype(array, where)
    elif isinstance(array, np.ndarray):
        raise _more_than_an_array(array, where)


def _check_dtype(array: Any, where: str) -> None:
    if array.dtype.name not in DTYPES:
        raise InvalidInput(f"{where} has dtype {array.dtype}; allowed are {', '.join(DTYPES)}", reason="TENSOR_DTYPE")
    if isinstance(array, Reference):
        check_name(array.name)


def _more_than_an_array(array: Any, where: str) -> InvalidInput:
    return InvalidInput(
        f"{where} is a {type(array).__name__}, which would arrive as a plain array; send numpy.array(it), and what "
        "else it has beside it",
        reason="INVALID_PARAMETERS",
    )


def _digits(value: int, where: str) -> str:
    try:
        return int.__repr__(value)  # that of an Enum would be a name
    except ValueError:  # Python's own limit
        raise InvalidInput(
            f"{where} is an integer of more than {_LONGEST_NUMBER} digits; send its bytes", reason="INVALID_PARAMETERS"
        ) from None


def _task_of(future: Any, where: str) -> str:
    task_id = getattr(future, "task_id", None)
    if not isinstance(task_id, str):
        raise InvalidInput(f"{where} is a future, but not of a task; wait for its result", reason="INVALID_PARAMETERS")
    return task_id


def _packed_dict(value: dict[Any, Any], tensors: dict[str, Array], where: str, levels: int) -> dict[str, Any]:
    plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
    left = levels - (OBJECT_LEVELS if plain else _ITEMS_LEVELS)
    parts = [(key, _packed(part, tensors, f"{where}[{key!r}]", left)) for key, part in value.items()]
    if plain:
        return dict(parts)
    return {_ITEMS: [[_packed(key, tensors, f"{where}: a key", left), part] for key, part in parts]}


def _added(array: Any, tensors: dict[str, Array], where: str) -> str:
    if len(tensors) == MOST_TENSORS:
        raise InvalidInput(
            f"{where:.200} is one array or bytes too many: a call takes {MOST_TENSORS}, and so does a result; "
            "stack them",
            reason="INVALID_PARAMETERS",
        )
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
        if mark == RESULT:
            raise InvalidInput(
                f"the parameters use the result of task {part!r:.60}, which is not among the dependencies",
                reason="INVALID_PARAMETERS",
            )
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
        raise InvalidInput(f"{pair!r:.40} is not a key with its value", reason="INVALID_PARAMETERS") from None
    return key, value


def _number(mark: str, text: Any) -> float | int:
    try:
        if not isinstance(text, str) or len(text) > _LONGEST_NUMBER:
            raise ValueError(text)
        return int(text) if mark == _INT else float(text)
    except ValueError:
        raise InvalidInput(f"{text!r:.40} is not a number", reason="INVALID_PARAMETERS") from None
