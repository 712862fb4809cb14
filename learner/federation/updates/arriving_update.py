"""One update as it arrives: chunks go to the spool, and digest, norm and finiteness are computed as they pass."""

import math

import numpy as np

from parlmesh.digests import fast_digest, fast_hasher, hasher_for
from parlmesh.errors import InvalidInput
from parlmesh.federation.compression import NONE, decode
from parlmesh.types import Array

from ..rules.records import Answer, Offer
from ..rules.update_checks import MASKED
from .update_spool import Spool

_STRETCH = 1 << 15


class SpoolWriter:
    """Fills a slot of the spool. Compressed updates are small, so they stay in memory until `finish`."""

    def __init__(self, spool: Spool, slot: int, offer: Offer, size_bytes: int, encoding: str) -> None:
        self.slot = slot
        self._spool = spool
        self._offer = offer
        self._size_bytes = size_bytes
        self._encoding = encoding
        self._received = 0
        self._packed = bytearray()
        self._digest = hasher_for(offer.digest)
        self._stored = self._digest if len(offer.digest) == len(fast_hasher().hexdigest()) else fast_hasher()
        self._square = 0.0
        self._finite = True

    @property
    def missing(self) -> int:
        """Bytes that are still to come."""
        return self._size_bytes - self._received

    def take(self, data: memoryview) -> None:
        """Takes a chunk; InvalidInput when more arrives than was promised."""
        if len(data) > self.missing:
            raise InvalidInput(f"more than the promised {self._size_bytes} bytes came", reason="UPDATE_SIZE")
        self._digest.update(data)
        if self._encoding not in (NONE, MASKED):
            self._packed += data
        else:
            if len(data) % 4:
                raise InvalidInput(f"a chunk must be a multiple of 4 bytes, got {len(data)}", reason="UPDATE_SIZE")
            if self._stored is not self._digest:
                self._stored.update(data)
            self._spool.write(self.slot, self._received, data)
            if self._encoding == NONE:
                self._look_at(np.frombuffer(data, "<f4"))
        self._received += len(data)

    def finish(self, metrics: dict[str, float]) -> Answer:
        """The whole update; InvalidInput when it does not match its header."""
        if self.missing:
            raise InvalidInput(f"{self._received} of {self._size_bytes} bytes came", reason="UPDATE_INCOMPLETE")
        if self._digest.hexdigest() != self._offer.digest:
            raise InvalidInput("the update's digest does not match its header", reason="UPDATE_DIGEST")
        stored = self._stored.hexdigest()
        if self._encoding not in (NONE, MASKED):
            vector = decode(bytes(self._packed), self._spool.size, self._encoding)
            self._look_at(vector)
            data = np.ascontiguousarray(vector, "<f4").tobytes()
            self._spool.write(self.slot, 0, data)
            stored = fast_digest(data).hex()
        return Answer.of(
            self._offer,
            slot=self.slot,
            norm=math.sqrt(self._square),
            finite=self._finite,
            stored_digest=stored,
            metrics=metrics,
        )

    def _look_at(self, numbers: Array) -> None:
        # In stretches, because the sum of squares is accurate to 1e-3 for any numbers if there are few.
        for start in range(0, len(numbers), _STRETCH):
            self._look_at_stretch(numbers[start : start + _STRETCH])

    def _look_at_stretch(self, numbers: Array) -> None:
        square = float(np.dot(numbers, numbers))
        if not math.isfinite(square):
            # Not finite, or only too large for the sum of squares in float32.
            self._finite = self._finite and bool(np.isfinite(numbers).all())
            wide = numbers.astype(np.float64)
            square = float(np.dot(wide, wide))
        self._square += square if math.isfinite(square) else math.inf
