import datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.v1 import task_pb2
from parlmesh.wire import payload_from_proto, payload_to_proto

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_parameters_come_back_as_they_were(parameters):
    message = task_pb2.Payload.FromString(payload_to_proto(parameters).SerializeToString())
    assert payload_from_proto(message) == (parameters, {})


def test_whole_numbers_come_back_as_int():
    parameters, _ = payload_from_proto(payload_to_proto({"count": 3, "share": 0.5}))
    # A Struct keeps no order.
    assert {name: type(value) for name, value in parameters.items()} == {"count": int, "share": float}


def test_tensors_travel_beside_the_parameters():
    _, tensors = payload_from_proto(payload_to_proto({}, {"x": np.arange(3)}))
    np.testing.assert_array_equal(tensors["x"], [0, 1, 2])


def test_tuples_and_scalars_of_numpy_travel_as_what_they_hold():
    given_values = {"a": (1, (2.5, "x")), "b": np.int64(7), "c": np.float32(0.5), "d": [np.bool_(True)]}
    parameters, _ = payload_from_proto(payload_to_proto(given_values))
    assert parameters == {"a": [1, [2.5, "x"]], "b": 7, "c": 0.5, "d": [True]}


ALLOWED = "a value must be text, a number, true, false, null, a list or an object"


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"seed": 2**60 + 1}, "'seed' is 1152921504606846977; integers go from -2^53 to 2^53 (9007199254740992)"),
        ({"a": [{"b": -(2**53) - 1}]}, "'a[0].b' is -9007199254740993; integers go from"),
        ({"a": np.uint64(2**63)}, "'a' is 9223372036854775808; integers go from"),
        ({"when": datetime.date(2026, 1, 2)}, f"'when' is datetime.date(2026, 1, 2) (date); {ALLOWED}"),
        ({"raw": b"ab"}, f"'raw' is b'ab' (bytes); {ALLOWED}"),
        ({"a": {"z": 1j}}, f"'a.z' is 1j (complex); {ALLOWED}"),
        ({"x": np.zeros(2)}, "arrays travel as tensors"),
        ({1: "x"}, "the key 1 (int) must be text"),
        ({"a": {2: "x"}}, "the key 2 (int) of 'a' must be text"),
        ([1], "parameters must be a JSON object, got [1] (list)"),
        ({"a": "\ud800"}, "parameters must be a JSON object"),
    ],
)
def test_what_has_no_place_in_json_is_refused_by_its_key(bad, sentence):
    with pytest.raises(InvalidInput) as error:
        payload_to_proto(bad)
    assert sentence in error.value.message
    assert error.value.reason == "PARAMETERS"


def test_parameters_that_hold_themselves_are_refused():
    parameters: dict[str, Any] = {}
    parameters["x"] = parameters
    with pytest.raises(InvalidInput, match="nested too deeply"):
        payload_to_proto(parameters)


@pytest.mark.parametrize("around", [lambda value: [value], lambda value: {"a": value}, lambda value: (value,)])
def test_parameters_are_nested_no_deeper_than_protobuf_reads(around):
    with pytest.raises(InvalidInput, match="nested too deeply"):
        read_ever_deeper(around)


def read_ever_deeper(around):
    value = 1
    for _ in range(60):
        value = around(value)
        sent = payload_to_proto({"a": value}).SerializeToString()
        assert list(payload_from_proto(task_pb2.Payload.FromString(sent))[0]) == ["a"]
