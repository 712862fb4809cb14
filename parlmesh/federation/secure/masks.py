"""Masks: streams of 32-bit words that look random without their key. Sums are modulo 2^32."""

from collections.abc import Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from parlmesh.types import Array

from .fixed_point import WORD

# Small enough to stay in the cache together with its mask.
_STRETCH = 1 << 14
_ZEROS = bytes(4 * _STRETCH)


class MaskStream:
    """The words of one key (AES-256 in counter mode), in order. A key masks only one vector."""

    def __init__(self, key: bytes) -> None:
        # The counter may start at 0 because the key is never reused.
        self._cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        self._mask = np.empty(_STRETCH, WORD)

    def add_to(self, words: Array) -> None:
        """Adds the next words in place."""
        for part, mask in self._parts(words):
            part += mask

    def take_from(self, words: Array) -> None:
        """Subtracts the next words in place."""
        for part, mask in self._parts(words):
            part -= mask

    def _parts(self, words: Array) -> Iterator[tuple[Array, Array]]:
        room = memoryview(self._mask).cast("B")  # type: ignore[arg-type]
        for start in range(0, len(words), _STRETCH):
            part = words[start : start + _STRETCH]
            self._cipher.update_into(memoryview(_ZEROS)[: 4 * len(part)], room)
            yield part, self._mask[: len(part)]
