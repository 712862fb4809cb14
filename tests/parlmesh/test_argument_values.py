"""Every argument and return value survives a round trip, types included."""

import copy
import math
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.argument_values import DTYPES, pack, results_in, unpack, with_results
from parlmesh.blobs import Reference
from parlmesh.errors import InvalidInput
from parlmesh.types import Array
from parlmesh.v1.fleet_service_pb2 import Assignment, ConnectResponse, TaskInput
from parlmesh.wire import payload_from_proto, payload_to_proto
from parlmesh.wire.tensors import tensor_to_proto

KEYS = st.one_of(st.text(max_size=8), st.integers(), st.tuples(st.booleans(), st.text(max_size=3)))
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=12), st.binary(max_size=12)
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


def through_the_wire(value: Any) -> Any:
    parameters, tensors = payload_from_proto(payload_to_proto(*pack({"value": value}, "f")))
    return unpack(parameters, tensors)["value"]


def typed(value: Any) -> Any:
    """Distinguishes 1, 1.0 and True, and 0.0 from -0.0; ignores the order of dicts."""
    if isinstance(value, dict):
        return frozenset((typed(key), typed(part)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(typed, value))
    return type(value).__name__, repr(value)


@given(VALUES)
def test_what_goes_in_comes_out(value: Any) -> None:
    assert typed(through_the_wire(value)) == typed(value)


def test_arrays_and_numbers_of_numpy_come_out() -> None:
    value = {"a": [np.arange(6, dtype=np.int16).reshape(2, 3)], "b": np.float64(2.0), "c": math.nan, "d": -0.0}
    found = through_the_wire(value)
    assert np.array_equal(found["a"][0], value["a"][0])  # type: ignore[index]
    assert found["a"][0].dtype == np.int16
    assert (type(found["b"]), found["b"]) == (float, 2.0)
    assert math.isnan(found["c"])
    assert math.copysign(1.0, found["d"]) == -1.0


class Level(float, Enum):
    LOW, HIGH = 0.5, 1.0


class Rounded(float):
    def __str__(self) -> str:
        return f"{float(self):.1e}"


class Size(int, Enum):
    SMALL, LARGE = 1, 1 << 60


@pytest.mark.parametrize(
    ("value", "number"),
    [(Level.LOW, 0.5), (Level.HIGH, 1.0), (Rounded(123456.0), 123456.0), (Size.SMALL, 1), (Size.LARGE, 1 << 60)],
)
def test_a_number_whose_class_writes_it_in_its_own_way_arrives_as_that_number(value: float, number: float) -> None:
    assert typed(through_the_wire(value)) == typed(number)


def test_a_value_that_cannot_be_sent_is_named_by_its_place() -> None:
    with pytest.raises(InvalidInput, match=r"f: value\['x'\]\[1\] is a set"):
        pack({"value": {"x": [1, {2}]}}, "f")
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidInput, match=r"f: value\[0\]\[0\].* is nested too deeply, or contains itself"):
        pack({"value": endless}, "f")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (np.datetime64("2020-01-01T00:00:00", "ns"), "is a datetime64;"),
        (np.datetime64("NaT"), "is a datetime64;"),
        (np.timedelta64(5, "ns"), "is a timedelta64;"),
        (np.zeros(1, [("a", "i4")])[0], "is a void;"),
        (np.ma.masked_array([1, 2], mask=[False, True]), "is a MaskedArray, which would arrive as a plain array"),
        (np.zeros(1, [("a", "i4")]).view(np.recarray), "is a recarray, which would arrive as a plain array"),
        ([np.ones(1)] * 257, r"value\[256\] is one array or bytes too many: a call takes 256"),
        (10**5000, "is an integer of more than 4300 digits"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_would_arrive_as_something_else_is_refused(value: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        pack({"value": value}, "f")


@pytest.mark.parametrize(
    ("around", "most"), [(lambda v: [v], 39), (lambda v: {"a": v}, 26), (lambda v: (v,), 15), (lambda v: {1: v}, 11)]
)
def test_what_is_nested_as_deep_as_is_told_is_read_and_what_is_deeper_is_refused(
    around: Callable[[Any], Any], most: int
) -> None:
    value: Any = 2.0
    for _ in range(most):
        value = around(value)
    parameters, _ = pack({"args": [value]}, "f")
    given = TaskInput(result=payload_to_proto(parameters))  # nothing that carries a payload is within more
    sent = ConnectResponse(assignments=[Assignment(inputs=[given])]).SerializeToString()
    read = ConnectResponse.FromString(sent).assignments[0].inputs[0].result
    assert unpack(payload_from_proto(read)[0], {}) == {"args": [value]}
    for _ in range(3):
        value = around(value)
    with pytest.raises(InvalidInput, match="nested too deeply"):
        pack({"args": [value]}, "f")


@pytest.mark.parametrize(
    "forged",
    [
        {"$tensor": "7"},
        {"$tensor": []},
        {"$items": [1]},
        {"$items": [[[1], 2]]},
        {"$int": "x"},
        {"$int": "9" * 5000},
        {"$float": 3},
    ],
)
def test_a_forged_value_is_refused(forged: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        unpack({"value": forged}, {})


def future_of(task_id: str) -> Any:
    future: Any = Future()
    future.task_id = task_id
    return future


@given(VALUES, VALUES)
def test_a_result_takes_the_place_of_its_future_wherever_it_stands(first: Any, second: Any) -> None:
    parameters, tensors = pack({"args": [future_of("a"), {"deep": (future_of("b"), np.ones(2))}]}, "f")
    assert results_in(parameters) == ["a", "b"]
    results = {"a": pack({"value": first}, "f"), "b": pack({"value": second}, "f")}
    args = unpack(*with_results(parameters, tensors, results))["args"]
    assert args[0] == first
    assert args[1]["deep"][0] == second
    assert args[1]["deep"][1].tolist() == [1.0, 1.0]


def test_what_another_handler_answered_stands_whole() -> None:
    answer: Any = ({"steps": 3, "curve": {"$tensor": "0"}}, {"0": np.arange(2)})
    parameters, tensors = with_results({"x": {"$result": "a"}}, {}, {"a": answer})
    assert parameters == {"x": {"steps": 3, "curve": {"$tensor": "a/0"}}}
    assert tensors["a/0"].tolist() == [0, 1]


def test_a_result_that_is_no_dependency_and_a_future_of_something_else_are_refused() -> None:
    with pytest.raises(InvalidInput, match="not among the dependencies"):
        unpack({"x": {"$result": "a"}}, {})
    with pytest.raises(InvalidInput, match="not of a task"):
        pack({"x": Future()}, "f")


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "complex64", "datetime64[s]", "U3", "O"])
def test_an_array_that_cannot_be_sent_is_named_by_its_place(dtype: str) -> None:
    with pytest.raises(InvalidInput, match=r"jobs\.f: args\[1\] has dtype .*; allowed are bool, uint8, .*, float64"):
        pack({"args": [1, np.zeros(3, dtype)]}, "jobs.f")


def test_the_arrays_that_can_be_sent_are_those_of_the_wire() -> None:
    sent = [each for each in np.sctypeDict.values() if issubclass(each, (np.number, np.bool_))]
    assert {np.dtype(each).name for each in sent if _travels(np.dtype(each))} == {*DTYPES}


def _travels(dtype: Any) -> bool:
    try:
        tensor_to_proto("x", np.zeros(1, dtype))
    except InvalidInput:
        return False
    return True


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        (Reference("blob:../../etc/passwd", np.dtype("float64"), (2,)), '"blob:../../etc/passwd" is not a blob name'),
        (Reference(f"blob:c.x.{'0' * 32}", np.dtype("O"), (2,)), "f: x has dtype object; allowed are"),
    ],
)
def test_a_forged_handle_is_refused(reference: Reference, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        pack({"x": reference}, "f")


def test_a_copy_of_a_handle_is_the_handle_because_the_array_lives_as_long() -> None:
    reference = Reference(f"blob:c.x.{'0' * 32}", np.dtype("float64"), (2,))
    assert copy.copy(reference) is reference
    assert copy.deepcopy({"x": [reference]})["x"][0] is reference


def test_an_array_with_the_name_of_a_results_array_is_refused() -> None:
    mine, theirs = np.zeros(2), np.ones(2)
    with pytest.raises(InvalidInput, match="tensor t/a is also the name of an array in the result of task 't'"):
        with_results({"r": {"$result": "t"}}, {"t/a": mine}, {"t": ({"v": {"$tensor": "a"}}, {"a": theirs})})


def test_an_array_of_another_library_is_refused_with_the_way_to_send_it() -> None:
    class Tensor:
        def __array__(self) -> Array:
            return np.ones(2)

    Tensor.__module__ = "torch.tensors"
    with pytest.raises(InvalidInput, match=r"args is a torch Tensor; send numpy\.asarray\(it\)"):
        pack({"args": Tensor()}, "f")
