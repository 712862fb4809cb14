"""Names of blobs: who wrote one, in which life, and the digest of its bytes."""

import math
import re
from dataclasses import dataclass

import numpy as np
import xxhash

from parlmesh.errors import InvalidInput

MARK = "blob:"
"""Every name begins so: what does not contain it refers to no blob."""
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


def digest_of(data: bytes | memoryview) -> str:
    """128 bits. A name is bound to its writer as well, so nobody gains by a second content of the same digest."""
    return xxhash.xxh3_128_hexdigest(data)


def name_of(writer: str, life: str, data: bytes | memoryview) -> str:
    """The name of a content that `writer` keeps; another life of it keeps the same content under another name."""
    return f"{MARK}{writer}.{life}.{digest_of(data)}"


def in_life(name: str, life: str) -> str:
    """The name of the same content in another life."""
    writer, _, digest = name.split(".")
    return f"{writer}.{life}.{digest}"


def check_name(name: str) -> tuple[str, str]:
    """Writer and digest; InvalidInput when it is no name. What passes is also safe as the name of a file."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidInput(
            f'"{name[:40]}" is no name of a blob; it must be blob:WRITER.LIFE.DIGEST', reason="BLOB_NAME"
        )
    return found[1], found[3]
