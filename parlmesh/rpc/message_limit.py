"""The server's message size limit, sent in the initial metadata where the protocol has no field for it."""

from collections.abc import Iterable
from typing import Any

KEY = "parlmesh-message-bytes"
MOST_MESSAGE_BYTES = 1 << 30
"""The limit of a client that wants no other."""
UNTOLD_MESSAGE_BYTES = 8 << 20
"""Assumed of a server that does not say its limit."""


def message_limit_metadata(message_bytes: int) -> tuple[tuple[str, str], ...]:
    """Sent by the server when it opens a stream."""
    return ((KEY, str(message_bytes)),)


def told_message_bytes(metadata: Iterable[Any] | None) -> int:
    """The server's limit; 0 when it sent none."""
    for key, value in metadata or ():
        if key == KEY and isinstance(value, str) and value.isascii() and value.isdigit():
            return int(value)
    return 0
