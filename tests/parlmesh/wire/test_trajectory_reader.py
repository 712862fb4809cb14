from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.errors import FleetError, ResourceExhausted
from parlmesh.types import Episode, Fragment, Trajectory
from parlmesh.v1 import experience_service_pb2 as pb
from parlmesh.wire import (
    TensorLimits,
    TrajectoryReader,
    field_head,
    trajectory_from_proto,
    trajectory_from_request,
    trajectory_to_proto,
    trajectory_to_request,
)
from parlmesh.wire.fields import read_varint

IDENTITY: dict[str, Any] = {"run_id": "run", "actor_id": "a", "incarnation": 3, "policy_version": 2}


def columns(value):
    return {
        "flag": np.full(1001, value % 2, np.bool_),
        "action": np.full((3, 5), value),
        "reward": np.full(70, value, np.float32),
    }


def request(value, sequence=1, task_id="t"):
    fragment = Fragment(columns(value), [Episode(float(value), value)])
    trajectory = Trajectory(fragment=fragment, sequence=sequence, task_id=task_id, **IDENTITY)
    return trajectory_to_request(trajectory).request


def taught(*requests):
    reader = TrajectoryReader()
    for each in requests:
        reader.trajectory(reader.request(each))
    return reader


def outcome(read):
    """What comes of a request: what is in it, or why it is refused."""
    try:
        found = read()
    except FleetError as error:
        return type(error), error.reason, error.message
    except DecodeError:
        return DecodeError
    plain = {name: (each.dtype, each.shape, each.tobytes()) for name, each in found.fragment.columns.items()}
    assert all(each.flags.aligned and not each.flags.writeable for each in found.fragment.columns.values())
    return found.sequence, found.task_id, found.policy_version, list(found.fragment.episodes), plain


def quickly(reader, data):
    return outcome(lambda: reader.trajectory(reader.request(data)))


def thoroughly(data):
    received = trajectory_from_request(data)
    return trajectory_from_proto(received.message, columns=received.columns)


@pytest.mark.parametrize("shift", range(8))
def test_the_second_trajectory_of_a_shape_is_compared_and_not_parsed(shift):
    reader = taught(request(1, 1, "t" * shift))
    data = request(2, 2, "u" * shift)
    received = reader.request(data)
    assert received.receipts_together
    assert received.arrays is not None
    assert all(np.shares_memory(each, np.frombuffer(data, np.uint8)) for each in received.arrays.values())
    assert quickly(reader, data) == outcome(lambda: thoroughly(data))


@settings(max_examples=300)
@given(st.data())
def test_a_reader_finds_in_any_bytes_what_a_full_parse_finds(data):
    honest = request(5, data.draw(st.sampled_from([1, 200, 20_000])), "t" * data.draw(st.integers(0, 8)))
    damaged = bytearray(honest)
    # What is not elements lies at the beginning, at the end and between the columns.
    interesting = [index for index in range(len(honest)) if index < 200 or not 300 < index < len(honest) - 600]
    for index in data.draw(st.lists(st.sampled_from(interesting), max_size=2)):
        damaged[index] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([0, 0, 0, 1, 2, 3, 290]))
    sent = bytes(damaged[: len(damaged) - cut])
    reader = taught(*(request(1, 1, "t" * shift) for shift in range(8)))
    assert quickly(reader, sent) == outcome(lambda: thoroughly(sent))


def test_another_shape_is_parsed_and_then_known_too():
    reader = taught(request(1))
    fragment = Fragment({"reward": np.ones((2, 2), np.float32)}, ())
    other = trajectory_to_request(Trajectory(fragment=fragment, sequence=2, **IDENTITY)).request
    assert reader.request(other).arrays is None
    assert quickly(reader, other) == outcome(lambda: thoroughly(other))
    assert reader.request(other).arrays is not None
    assert reader.request(request(3)).arrays is not None


def test_what_another_client_writes_is_parsed_each_time_if_it_is_not_aligned():
    fragment = Fragment({"column": np.arange(5, dtype=np.float64)}, ())
    seen = set()
    for shift in range(8):
        message = trajectory_to_proto(fragment, sequence=1, task_id="t" * shift, **IDENTITY)
        data = pb.UploadTrajectoriesRequest(trajectory=message).SerializeToString()
        reader = taught(data)
        seen.add(reader.request(data).arrays is not None)
        assert quickly(reader, data) == outcome(lambda data=data: thoroughly(data))
    assert seen == {True, False}


def test_a_reader_refuses_what_is_larger_than_its_limit_each_time():
    reader = TrajectoryReader(TensorLimits(max_bytes=1000))
    for value in (1, 2):
        with pytest.raises(ResourceExhausted, match="the limit is 1000"):
            reader.trajectory(reader.request(request(value)))


@pytest.mark.parametrize("group", [b"\x7b\x7c", b"\xfb\x01\x08\x01\xfc\x01"], ids=["empty", "with a field"])
@pytest.mark.parametrize("count", [1, 4])
def test_a_group_before_the_columns_is_refused_as_it_is_by_a_full_parse(group, count):
    data = request(2)
    length, begin = read_varint(data, 1)
    body = group * count + data[begin : begin + length]
    changed = field_head(1, len(body)) + body + data[begin + length :]
    reader = taught(*(request(1, 1, "t" * shift) for shift in range(8)))
    assert quickly(reader, changed) == outcome(lambda: thoroughly(changed))
    assert outcome(lambda: thoroughly(changed))[1] == "MALFORMED_MESSAGE"
