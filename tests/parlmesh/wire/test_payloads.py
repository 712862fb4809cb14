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
    assert [type(value) for value in parameters.values()] == [int, float]


def test_tensors_travel_beside_the_parameters():
    _, tensors = payload_from_proto(payload_to_proto({}, {"x": np.arange(3)}))
    np.testing.assert_array_equal(tensors["x"], [0, 1, 2])


@pytest.mark.parametrize("bad", [{"x": object()}, {"x": np.float32(1)}, {1: "x"}])
def test_parameters_that_are_not_json_are_refused(bad):
    with pytest.raises(InvalidInput, match="parameters must be a JSON object"):
        payload_to_proto(bad)
