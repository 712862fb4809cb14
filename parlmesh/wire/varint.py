"""Protobuf's variable-length numbers, written from tables because every task and every lease passes here."""

SMALL_NUMBERS = 1 << 14
SMALL = [bytes((number,)) for number in range(1 << 7)] + [
    bytes((low | 0x80, high)) for high in range(1, 1 << 7) for low in range(1 << 7)
]
"""The varint of each number below SMALL_NUMBERS, for callers that know theirs is one."""
LOW = [bytes((low | 0x80, high | 0x80)) for high in range(1 << 7) for low in range(1 << 7)]
"""The lowest 14 bits of a larger number, marked as continued."""

_LONGEST_BITS = 70

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
