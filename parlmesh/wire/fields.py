"""Protobuf's fields, written and read by hand where every task, lease and trajectory passes."""

from parlmesh.errors import InvalidInput

SMALL_NUMBERS = 1 << 14
SMALL = [bytes((number,)) for number in range(1 << 7)] + [
    bytes((low | 0x80, high)) for high in range(1, 1 << 7) for low in range(1 << 7)
]
"""The varint of each number below SMALL_NUMBERS, for callers that know theirs is one."""
LOW = [bytes((low | 0x80, high | 0x80)) for high in range(1 << 7) for low in range(1 << 7)]
"""The lowest 14 bits of a larger number, marked as continued."""

_LONGEST_BITS = 70
# Protobuf's kinds of fields.
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

# Lease ids are large and close together, so their upper parts repeat.
_HIGH_PARTS_KEPT = 1024
_high_parts: dict[int, bytes] = {}


def varint(number: int) -> bytes:
    """The bytes of a number that is not negative."""
    if number < SMALL_NUMBERS:
        return SMALL[number]
    if number < 1 << 28:
        return LOW[number & 0x3FFF] + SMALL[number >> 14]
    high = number >> 14
    encoded = _high_parts.get(high)
    if encoded is None:
        if len(_high_parts) > _HIGH_PARTS_KEPT:
            _high_parts.clear()
        encoded = _high_parts[high] = varint(high)
    return LOW[number & 0x3FFF] + encoded


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The number at a position, and the position after it; ValueError if it is cut off or too long."""
    value = shift = 0
    try:
        while shift < _LONGEST_BITS:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
            shift += 7
    except IndexError:
        pass
    raise ValueError("a varint has no end")


def field_head(number: int, length: int) -> bytes:
    """Tag and length of a length-delimited field, as protobuf writes them."""
    return varint(number << 3 | 2) + varint(length)


def take_out(message: bytes | memoryview, number: int) -> tuple[bytes, list[memoryview]]:
    """The message without its length-delimited fields of this number, and those fields as views, so that large ones are
    not copied when the rest is parsed."""
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
        # Most tags and lengths are a single byte, and each trajectory has a hundred of them.
        if (tag := view[position]) < 0x80:
            position += 1
        else:
            tag, position = read_varint(view, position)
        kind = tag & 7
        if kind == _LENGTH:
            if position < end and (length := view[position]) < 0x80:
                position += 1
            else:
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
