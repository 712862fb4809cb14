"""The server's message size limit, sent in the initial metadata where the protocol has no field for it."""

from collections.abc import Iterable
from typing import Any

KEY = "parlmesh-message-bytes"
MOST_MESSAGE_BYTES = 1 << 30
"""What a client takes and sends that wants no other limit."""
UNTOLD_MESSAGE_BYTES = 8 << 20
"""What a server takes that does not say."""


def message_limit_metadata(message_bytes: int) -> tuple[tuple[str, str], ...]:
    """To be sent by the server when it opens a stream."""
    return ((KEY, str(message_bytes)),)


def told_message_bytes(metadata: Iterable[Any] | None) -> int:
    """The server's word; 0 when it has none."""
    for key, value in metadata or ():
        if key == KEY and isinstance(value, str) and value.isascii() and value.isdigit():
            return int(value)
    return 0
