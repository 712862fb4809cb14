"""Messages that are one run of bytes, coded by hand because protobuf would copy every chunk again."""

from parlmesh.wire.fields import read_varint, varint

UPDATE_DATA = b"\x1a"
"""Tag of SubmitUpdateRequest.data: field 3, a length and that many bytes."""
MODEL_DATA = b"\x12"
"""Tag of GetFederatedModelResponse.data and WatchFederatedModelResponse.data: field 2."""
UPDATE_PART = b"\x0a"
"""Tag of SubmitUpdatesRequest.parts: field 1."""


def chunk_to_wire(tag: bytes, data: bytes | memoryview) -> bytes:
    """The encoded message that has this one field."""
    return b"".join((tag, varint(len(data)), data))


def part_to_wire(header: bytes, data: bytes | memoryview) -> bytes:
    """An encoded SubmitUpdatesRequest of one part: an encoded SubmitUpdateRequest with its header, or b"", and data.

    Several of them joined together are one message too.
    """
    size = varint(len(data))
    length = len(header) + len(UPDATE_DATA) + len(size) + len(data)
    return b"".join((UPDATE_PART, varint(length), header, UPDATE_DATA, size, data))


def chunk_from_wire(tag: bytes, message: bytes | memoryview) -> memoryview | None:
    """The field's bytes when the message has nothing else; None when it must be parsed."""
    if message[: len(tag)] != tag:
        return None
    try:
        length, start = read_varint(message, len(tag))
    except ValueError:
        return None
    return memoryview(message)[start:] if start + length == len(message) else None
