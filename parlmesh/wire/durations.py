"""google.protobuf.Duration written and read by hand: every task has two of them."""

from .fields import LOW, SMALL, read_varint, varint

NANOSECONDS = 1_000_000_000


def duration_bytes(seconds: float) -> bytes:
    """The message for seconds that are not negative."""
    nanos = int(seconds * NANOSECONDS)
    if nanos < 1 << 14:
        return b"\x10" + SMALL[nanos] if nanos else b""
    if nanos < 1 << 28:
        return b"\x10" + LOW[nanos & 0x3FFF] + SMALL[nanos >> 14]
    whole, nanos = divmod(nanos, NANOSECONDS)
    return b"\x08" + varint(whole) + (b"\x10" + varint(nanos) if nanos else b"")


def short_seconds(data: bytes) -> float:
    """The seconds in a message of less than one; -1 for any other."""
    if not data:
        return 0.0
    if data[0] != 0x10:
        return -1.0
    nanos, end = read_varint(data, 1)
    return nanos / NANOSECONDS if end == len(data) and nanos < NANOSECONDS else -1.0
