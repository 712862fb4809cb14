"""Names of blobs: the writer, one of its lifetimes, and the digest of the bytes."""

import math
import re
from dataclasses import dataclass
from typing import Self

import numpy as np
import xxhash

from parlmesh.errors import InvalidInput

MARK = "blob:"
"""Start of every name: bytes that do not contain it refer to no blob."""
_NAME = re.compile(r"blob:([a-z0-9]{1,32})\.([a-z0-9-]{1,32})\.([0-9a-f]{32})")


@dataclass(frozen=True)
class Reference:
    """An array that is kept in a blob: everything but its elements."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __copy__(self) -> Self:
        """Itself: the array that was put is kept as long as this object is."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


def digest_of(data: bytes | memoryview) -> str:
    """128 bits. A name is also bound to its writer, so other bytes with the same digest gain nothing."""
    return xxhash.xxh3_128_hexdigest(data)


def name_of(writer: str, life: str, data: bytes | memoryview) -> str:
    """The name of these bytes, kept by `writer`; in another lifetime, the same bytes have another name."""
    return f"{MARK}{writer}.{life}.{digest_of(data)}"


def in_life(name: str, life: str) -> str:
    """The name of the same bytes in another lifetime."""
    writer, _, digest = name.split(".")
    return f"{writer}.{life}.{digest}"


def check_name(name: str) -> tuple[str, str]:
    """Writer and digest; raises InvalidInput when this is not a blob name. A valid one is also a safe file name."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidInput(f'"{name[:40]}" is not a blob name; it must be blob:WRITER.LIFE.DIGEST', reason="BLOB_NAME")
    return found[1], found[3]
