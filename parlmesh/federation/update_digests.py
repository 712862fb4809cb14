"""What tells one update from another and finds bytes that changed on their way or on disk.

XXH3-128 reads a model in a tenth of the time that SHA-256 takes. It proves nothing against somebody who forges: who may
send an update is the gate's business, and a node that finds two updates of one digest has only fooled itself.
"""

import hashlib
from typing import Protocol

import xxhash

from parlmesh.errors import InvalidInput

_FAST_BYTES, _STRONG_BYTES = 16, 32


class Hasher(Protocol):
    """As hashlib's."""

    def update(self, data: memoryview, /) -> None: ...

    def digest(self) -> bytes: ...

    def hexdigest(self) -> str: ...


def fast_hasher() -> Hasher:
    """XXH3-128."""
    return xxhash.xxh3_128()


def fast_digest(data: bytes | memoryview) -> bytes:
    """The digest of one stretch of bytes."""
    return xxhash.xxh3_128(data).digest()


def hasher_for(hexadecimal: str) -> Hasher:
    """The one that a digest of this length is made by; InvalidInput when there is none."""
    length = len(hexadecimal) // 2
    if length == _FAST_BYTES:
        return fast_hasher()
    if length == _STRONG_BYTES:
        return hashlib.sha256()
    raise InvalidInput(
        f"a digest must have {_FAST_BYTES} bytes (XXH3-128) or {_STRONG_BYTES} (SHA-256), got {length}",
        reason="UPDATE_DIGEST",
    )
