"""Protobuf's wire form, read without copying: large fields are taken out of a message before the rest is parsed."""

from parlmesh.errors import InvalidInput

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def take_out(message: bytes | memoryview, number: int) -> tuple[bytes, list[memoryview]]:
    """The message without its length-delimited fields of this number, and those fields, as views."""
    view = memoryview(message)
    end, position, start = len(view), 0, 0
    kept: list[memoryview] = []
    found: list[memoryview] = []
    while position < end:
        begin = position
        tag, position = _varint(view, position)
        kind = tag & 7
        if kind == _LENGTH:
            length, position = _varint(view, position)
            if length > end - position:
                raise _malformed(end)
            if tag >> 3 == number:
                kept.append(view[start:begin])
                start = position + length
                found.append(view[position:start])
            position += length
        elif kind == _VARINT:
            _, position = _varint(view, position)
        elif kind == _FIXED64:
            position += 8
        elif kind == _FIXED32:
            position += 4
        else:
            raise _malformed(end)
    if position != end:
        raise _malformed(end)
    kept.append(view[start:])
    return b"".join(kept), found


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    for byte in view[position : position + _LONGEST_VARINT]:
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _malformed(len(view))


def _malformed(size: int) -> InvalidInput:
    return InvalidInput(f"a message of {size} bytes cannot be parsed", reason="MALFORMED_MESSAGE")
