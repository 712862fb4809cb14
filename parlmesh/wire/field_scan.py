"""Protobuf's wire form, read without copying: large fields are taken out of a message before the rest is parsed."""

from parlmesh.errors import InvalidInput
from parlmesh.wire.varint import read_varint

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def take_out(message: bytes | memoryview, number: int) -> tuple[bytes, list[memoryview]]:
    """The message without its length-delimited fields of this number, and those fields, as views."""
    try:
        return _divide(memoryview(message), number)
    except ValueError:
        raise InvalidInput(f"a message of {len(message)} bytes cannot be parsed", reason="MALFORMED_MESSAGE") from None


def _divide(view: memoryview, number: int) -> tuple[bytes, list[memoryview]]:
    end, position, start = len(view), 0, 0
    kept: list[memoryview] = []
    found: list[memoryview] = []
    while position < end:
        begin = position
        tag, position = read_varint(view, position)
        kind = tag & 7
        if kind == _LENGTH:
            length, position = read_varint(view, position)
            if length > end - position:
                raise ValueError("malformed")
            if tag >> 3 == number:
                kept.append(view[start:begin])
                start = position + length
                found.append(view[position:start])
            position += length
        elif kind == _VARINT:
            _, position = read_varint(view, position)
        elif kind == _FIXED64:
            position += 8
        elif kind == _FIXED32:
            position += 4
        else:
            raise ValueError("malformed")
    if position != end:
        raise ValueError("malformed")
    kept.append(view[start:])
    return b"".join(kept), found
