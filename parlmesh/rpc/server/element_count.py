"""Counts a message's elements before it is parsed: two bytes on the wire can be sixty in memory.

Only large messages are checked; a small one cannot grow enough to do harm.
"""

from functools import lru_cache
from typing import NamedTuple

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from parlmesh.errors import InvalidInput
from parlmesh.wire.fields import read_varint

LOOKED_AT_BYTES = 256 * 1024
MOST_ELEMENTS = 100_000
"""Fields at all depths together, and numbers in packed lists."""

_ONE_BYTE = 0x7F
_LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}
_NUMBER_BYTES = {
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
}


class _Inside(NamedTuple):
    """The content of a length-delimited field."""

    message: Descriptor | None
    """None also for a message that counts as one element."""
    number_bytes: int
    """Least size of a number in a packed list; 0 = text or bytes, which are one element."""


def check_density(data: bytes, method: str) -> None:
    """InvalidInput for a large message, valid or not, that has more elements than any honest one."""
    if len(data) <= LOOKED_AT_BYTES or (request := _request_of(method)) is None:
        return
    if count_elements(data, request, MOST_ELEMENTS) > MOST_ELEMENTS:
        raise InvalidInput(
            f"a message of {len(data)} bytes has more than {MOST_ELEMENTS} elements; that is the limit",
            reason="MESSAGE_TOO_DENSE",
            method=method,
            most=MOST_ELEMENTS,
        )


def count_elements(data: bytes, descriptor: Descriptor, most: int) -> int:
    """Stops soon after `most`, or where the message is broken."""
    count, parts = 0, [(0, len(data), descriptor)]
    try:
        while parts and count <= most:
            position, end, kind = parts.pop()
            inside = _insides(kind)
            while position < end and count <= most:
                count += 1
                # Most tags and sizes are one byte.
                tag = data[position]
                position += 1
                if tag > _ONE_BYTE:
                    tag, position = read_varint(data, position - 1)
                wire = tag & 7
                if wire == _LENGTH_DELIMITED:
                    size = data[position]
                    position += 1
                    if size > _ONE_BYTE:
                        size, position = read_varint(data, position - 1)
                    if size and (found := inside.get(tag >> 3)) is not None:
                        if found.message is not None:
                            parts.append((position, min(end, position + size), found.message))
                        elif found.number_bytes:
                            count += size // found.number_bytes
                    position += size
                elif wire == 0:
                    _, position = read_varint(data, position)
                elif wire in _FIXED_BYTES:
                    position += _FIXED_BYTES[wire]
                else:
                    return count
    except (IndexError, ValueError):
        # The parser will report the error.
        pass
    return count


@lru_cache(maxsize=256)
def _insides(descriptor: Descriptor) -> dict[int, _Inside]:
    return {field.number: _inside(field) for field in descriptor.fields}


def _inside(field: FieldDescriptor) -> _Inside:
    if field.message_type is not None:
        return _Inside(None if _is_flat(field.message_type) else field.message_type, 0)
    if not field.is_repeated or field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _Inside(None, 0)
    return _Inside(None, _NUMBER_BYTES.get(field.type, 1))


def _is_flat(descriptor: Descriptor) -> bool:
    """Whether it has neither lists nor messages in it: its size in memory is fixed, however often a field comes."""
    return not any(field.is_repeated or field.message_type is not None for field in descriptor.fields)


@lru_cache(maxsize=256)
def _request_of(method: str) -> Descriptor | None:
    """None for a method that is in no contract."""
    try:
        found: Descriptor = descriptor_pool.Default().FindMethodByName(method.strip("/").replace("/", ".")).input_type
    except KeyError:
        return None
    return found
