import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from parlmesh.errors import InvalidInput, ResourceExhausted
from parlmesh.v1 import tensor_pb2 as pb
from parlmesh.v1.policy_service_pb2 import GetPolicyResponse, PolicyHeader
from parlmesh.wire import TensorLimits, take_out, tensor_from_proto, tensor_to_proto, tensors_from_proto

DTYPES = ["bool", "u1", "i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", ">i4", ">f8"]


@given(
    hnp.arrays(dtype=st.sampled_from(DTYPES), shape=hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))
)
def test_every_dtype_and_shape_comes_back_as_it_was(array):
    decoded = tensor_from_proto(pb.Tensor.FromString(tensor_to_proto("x", array).SerializeToString()))
    np.testing.assert_array_equal(decoded, array)
    assert decoded.shape == array.shape
    assert decoded.dtype == array.dtype.newbyteorder("=")


def test_an_array_that_is_not_contiguous_is_written_in_c_order():
    array = np.arange(12).reshape(3, 4).T
    np.testing.assert_array_equal(tensor_from_proto(tensor_to_proto("x", array)), array)


def test_an_element_type_without_a_code_is_refused_by_name():
    with pytest.raises(InvalidInput, match="tensor x has dtype complex128"):
        tensor_to_proto("x", np.zeros(1, np.complex128))


def tensor(**changes):
    fields = {"name": "reward", "dtype": pb.DATA_TYPE_FLOAT32, "shape": [2, 3], "data": bytes(24), **changes}
    return pb.Tensor(**fields)


@pytest.mark.parametrize(
    ("bad", "error", "sentence"),
    [
        (tensor(data=bytes(23)), InvalidInput, r"tensor reward of float32\[2, 3\] must have 24 bytes, got 23"),
        (tensor(dtype=0), InvalidInput, "tensor reward has unknown dtype 0"),
        (tensor(dtype=99), InvalidInput, "tensor reward has unknown dtype 99"),
        (tensor(shape=[0, 1 << 62]), ResourceExhausted, r"tensor reward of shape \[0, .*\] needs .* the limit is 1000"),
        (tensor(shape=[-2, 3]), InvalidInput, r"tensor reward has a negative dimension in \[-2, 3\]"),
        (tensor(shape=[1] * 9), InvalidInput, "tensor reward has 9 dimensions; the limit is 8"),
        (tensor(shape=[2**62, 2**62]), ResourceExhausted, "tensor reward of shape .* the limit is 1000"),
        (tensor(shape=[251]), ResourceExhausted, "needs 1004 bytes; the limit is 1000"),
        (tensor(shape=[1 << 62, 0, 1 << 62]), ResourceExhausted, "the limit is 1000"),
        (tensor(name=""), InvalidInput, "tensor name must have 1 to 200 characters, got 0"),
        (tensor(name="x" * 201), InvalidInput, "tensor name must have 1 to 200 characters, got 201"),
    ],
)
def test_a_bad_tensor_is_refused_with_its_name_and_the_limit(bad, error, sentence):
    with pytest.raises(error, match=sentence):
        tensor_from_proto(bad, TensorLimits(max_bytes=1000))


def test_the_limit_holds_for_all_tensors_of_a_message_together():
    tensors = [tensor(name=f"t{index}") for index in range(3)]
    assert len(tensors_from_proto(tensors, TensorLimits(max_bytes=72))) == 3
    with pytest.raises(ResourceExhausted, match="tensors up to t2 have 72 bytes; the limit is 71"):
        tensors_from_proto(tensors, TensorLimits(max_bytes=71))


def test_a_name_that_is_there_twice_is_refused():
    with pytest.raises(InvalidInput, match="tensor reward appears twice"):
        tensors_from_proto([tensor(), tensor()])


def test_too_many_tensors_are_refused():
    with pytest.raises(ResourceExhausted, match="more than 2 tensors"):
        tensors_from_proto([tensor(name=str(index)) for index in range(3)], TensorLimits(max_tensors=2))


messages = st.builds(
    pb.Tensor,
    name=st.text(max_size=5),
    dtype=st.sampled_from([0, 1, 8]),
    shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    data=st.binary(max_size=300),
)


@given(messages)
def test_what_is_taken_out_and_what_is_left_are_the_message(tensor):
    rest, found = take_out(tensor.SerializeToString(), 4)
    assert b"".join(found) == tensor.data
    left = pb.Tensor.FromString(rest)
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
