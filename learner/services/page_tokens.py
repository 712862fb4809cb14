"""Splits a long list into pages: each continues where the previous one ended, even if entries were added or removed."""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from parlmesh.errors import InvalidInput

MOST_ITEMS = 1_000
# Well below the limit of a message.
_MOST_BYTES = 3 << 20

Key = tuple[float, int, str]
"""Descending from page to page: a time, a number, a name."""


class _Message(Protocol):
    def ByteSize(self) -> int: ...


T = TypeVar("T")
M = TypeVar("M", bound=_Message)


def page(
    items: Sequence[T], key: Callable[[T], Key], to_message: Callable[[T], M], *, size: int, token: str
) -> tuple[list[M], str]:
    """The messages of one page, highest keys first, and the token of the next page, empty when there is none."""
    if not 0 <= size <= MOST_ITEMS:
        raise InvalidInput(f"page_size is {size}; it must be 0 to {MOST_ITEMS}", reason="INVALID_PAGE_SIZE")
    last = _key_of(token) if token else None
    rest = sorted((item for item in items if last is None or key(item) < last), key=key, reverse=True)
    found: list[M] = []
    room = _MOST_BYTES
    for item in rest[: size or MOST_ITEMS]:
        message = to_message(item)
        room -= message.ByteSize()
        # At least one, or the caller would make no progress.
        if room < 0 and found:
            break
        found.append(message)
    more = len(found) < len(rest)
    return found, _token_of(key(rest[len(found) - 1])) if more else ""


def _token_of(key: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def _key_of(token: str) -> Key:
    try:
        if len(token) > 2_000:
            raise ValueError("too long")
        found: Any = json.loads(base64.urlsafe_b64decode(token.encode("ascii")))
        time, number, name = found
        return float(time), int(number), str(name)
    except (ValueError, TypeError, RecursionError, OverflowError):
        shown = repr(token[:40])
        raise InvalidInput(f"page_token {shown} is not from an earlier answer", reason="INVALID_PAGE_TOKEN") from None
