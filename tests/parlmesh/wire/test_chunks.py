from hypothesis import given
from hypothesis import strategies as st

from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.wire.chunks import MODEL_DATA, UPDATE_DATA, UPDATE_PART, chunk_from_wire, chunk_to_wire, part_to_wire


@given(st.binary(max_size=300) | st.integers(0, 1 << 22).map(bytes))
def test_chunks_are_what_protobuf_makes_of_them(data):
    wire = chunk_to_wire(UPDATE_DATA, data)
    assert pb.SubmitUpdateRequest.FromString(wire) == pb.SubmitUpdateRequest(data=data)
    assert pb.GetFederatedModelResponse.FromString(chunk_to_wire(MODEL_DATA, data)) == pb.GetFederatedModelResponse(
        data=data
    )
    if data:
        assert chunk_from_wire(UPDATE_DATA, pb.SubmitUpdateRequest(data=data).SerializeToString()) == data


@given(st.binary(max_size=50))
def test_anything_else_is_left_to_protobuf(data):
    with_header = pb.SubmitUpdateRequest(header=pb.UpdateHeader(round=3), data=data).SerializeToString()
    assert chunk_from_wire(UPDATE_DATA, with_header) is None
    assert chunk_from_wire(UPDATE_DATA, UPDATE_DATA + b"\xff" * 12) is None
    assert chunk_from_wire(UPDATE_DATA, UPDATE_DATA) is None
    assert chunk_from_wire(UPDATE_DATA, chunk_to_wire(UPDATE_DATA, b"abc")[:-1]) is None


@given(st.binary(max_size=300) | st.integers(0, 1 << 20).map(bytes), st.integers(0, 1 << 40))
def test_parts_of_updates_are_what_protobuf_makes_of_them(data, number):
    header = pb.SubmitUpdateRequest(header=pb.UpdateHeader(round=number))
    first, later = part_to_wire(header.SerializeToString(), data), part_to_wire(b"", data)
    wanted = [pb.SubmitUpdateRequest(header=header.header, data=data), pb.SubmitUpdateRequest(data=data)]
    assert list(pb.SubmitUpdatesRequest.FromString(first + later).parts) == wanted
    inner = chunk_from_wire(UPDATE_PART, later)
    assert inner is not None
    assert chunk_from_wire(UPDATE_DATA, inner) == data
    assert chunk_from_wire(UPDATE_PART, first + later) is None
