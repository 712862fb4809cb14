import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.wire.durations import NANOSECONDS, duration_bytes, short_seconds


@given(st.one_of(st.floats(0, 1), st.floats(0, 1e9)))
def test_durations_are_those_of_protobuf(seconds: float) -> None:
    message = Duration.FromString(duration_bytes(seconds))
    assert message.ToNanoseconds() == int(seconds * NANOSECONDS)


@given(st.integers(0, NANOSECONDS - 1))
def test_a_duration_of_less_than_a_second_is_read_as_protobuf_reads_it(nanos: int) -> None:
    assert short_seconds(Duration(nanos=nanos).SerializeToString()) == nanos / NANOSECONDS


@pytest.mark.parametrize("message", [Duration(seconds=1), Duration(seconds=1, nanos=5), Duration(nanos=-5)])
def test_any_other_duration_is_left_to_protobuf(message: Duration) -> None:
    assert short_seconds(message.SerializeToString()) == -1.0
