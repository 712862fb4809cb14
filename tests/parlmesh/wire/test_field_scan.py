import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.v1.policy_service_pb2 import GetPolicyResponse, PolicyHeader
from parlmesh.v1.tensor_pb2 import Tensor
from parlmesh.wire import take_out

tensors = st.builds(
    Tensor,
    name=st.text(max_size=5),
    dtype=st.sampled_from([0, 1, 8]),
    shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    data=st.binary(max_size=300),
)


@given(tensors)
def test_what_is_taken_out_and_what_is_left_are_the_message(tensor):
    rest, found = take_out(tensor.SerializeToString(), 4)
    assert b"".join(found) == tensor.data
    left = Tensor.FromString(rest)
    assert left.data == b""
    left.data = tensor.data
    assert left == tensor


def test_fields_of_every_kind_are_passed_over():
    # 1: fixed64, 2: fixed32, 3: varint, 4: the field twice
    message = b"\x09" + bytes(8) + b"\x15" + bytes(4) + b"\x18\x96\x01" + b"\x22\x01a" + b"\x22\x02bc"
    rest, found = take_out(message, 4)
    assert [bytes(part) for part in found] == [b"a", b"bc"]
    assert rest == message[: -len(b"\x22\x01a\x22\x02bc")]


@given(st.binary(max_size=60))
def test_whatever_comes_is_taken_apart_or_refused(data):
    with contextlib.suppress(InvalidInput):
        rest, found = take_out(data, 3)
        assert len(rest) + sum(map(len, found)) <= len(data)


@pytest.mark.parametrize("data", [b"\x22\x05abc", b"\x0b\x00", b"\x09abc", b"\x80" * 11, b"\x08"])
def test_a_message_that_is_cut_off_or_no_message_is_refused(data):
    with pytest.raises(InvalidInput, match="cannot be parsed"):
        take_out(data, 4)


def test_a_chunk_is_taken_out_of_its_message_without_a_copy():
    message = GetPolicyResponse(header=PolicyHeader(version=3), data=b"x" * 100).SerializeToString()
    rest, (chunk,) = take_out(message, 3)
    assert chunk.obj is message
    assert GetPolicyResponse.FromString(rest).header.version == 3
