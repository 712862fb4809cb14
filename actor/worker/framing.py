"""Messages on a pipe: four bytes of length, little-endian, then the message."""

HEADER_BYTES = 4


def frame(message: bytes) -> bytes:
    """A message as it goes over the pipe."""
    return len(message).to_bytes(HEADER_BYTES, "little") + message


def length_of(header: bytes) -> int:
    """Length of the message behind a header."""
    return int.from_bytes(header, "little")
