"""One update on its way in: chunks go to the spool, digest, norm and finiteness are taken as they pass."""

import hashlib
import math

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.federation.compression import NONE, decode
from parlmesh.types import Array

from .records import Answer, Offer
from .spool import Spool


class Receiver:
    """Holds a place of the spool until `finish`. Compressed updates are kept in memory, which is why they are small."""

    def __init__(self, spool: Spool, slot: int, size_bytes: int, encoding: str) -> None:
        self.slot = slot
        self._spool = spool
        self._size_bytes = size_bytes
        self._encoding = encoding
        self._received = 0
        self._packed = bytearray()
        self._digest = hashlib.sha256()
        self._square = 0.0
        self._finite = True

    def take(self, data: memoryview) -> None:
        """One chunk; InvalidInput when it is more than was promised."""
        if self._received + len(data) > self._size_bytes:
            raise InvalidInput(f"more than the promised {self._size_bytes} bytes came", reason="UPDATE_SIZE")
        self._digest.update(data)
        if self._encoding != NONE:
            self._packed += data
        else:
            if len(data) % 4:
                raise InvalidInput(f"a chunk must be a multiple of 4 bytes, got {len(data)}", reason="UPDATE_SIZE")
            self._spool.write(self.slot, self._received, data)
            self._look_at(np.frombuffer(data, "<f4"))
        self._received += len(data)

    def finish(self, offer: Offer, metrics: dict[str, float]) -> Answer:
        """The whole update; InvalidInput when it is not what its header said."""
        if self._received != self._size_bytes:
            raise InvalidInput(f"{self._received} of {self._size_bytes} bytes came", reason="UPDATE_INCOMPLETE")
        digest = stored = self._digest.hexdigest()
        if digest != offer.digest:
            raise InvalidInput("the update's digest is not that of its header", reason="UPDATE_DIGEST")
        if self._encoding != NONE:
            vector = decode(bytes(self._packed), self._spool.size, self._encoding)
            self._look_at(vector)
            data = np.ascontiguousarray(vector, "<f4").tobytes()
            self._spool.write(self.slot, 0, data)
            stored = hashlib.sha256(data).hexdigest()
        return Answer.of(
            offer,
            slot=self.slot,
            norm=math.sqrt(self._square),
            finite=self._finite,
            stored_digest=stored,
            metrics=metrics,
        )

    def _look_at(self, numbers: Array) -> None:
        square = float(np.dot(numbers, numbers))
        if not math.isfinite(square):
            # Not finite, or only too large for the sum of squares in float32.
            self._finite = self._finite and bool(np.isfinite(numbers).all())
            wide = numbers.astype(np.float64)
            square = float(np.dot(wide, wide))
        self._square += square if math.isfinite(square) else math.inf
