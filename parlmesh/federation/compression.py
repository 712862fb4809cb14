"""Compressed updates: 8 bits per value, or only the largest values. The error is sent later (error feedback)."""

import math

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

NONE, INT8, TOP_K = "none", "int8", "top_k"
ENCODINGS = (NONE, INT8, TOP_K)

_INT8_BLOCK = 4096
_LEVELS = 127.0


def encode(vector: Array, encoding: str, ratio: float = 0.01) -> bytes:
    """float32 [size] as bytes; `ratio` is the share of values that top_k keeps."""
    if encoding == INT8:
        return _encode_int8(vector)
    if encoding == TOP_K:
        return _encode_top_k(vector, ratio)
    return np.ascontiguousarray(vector, "<f4").tobytes()


def decode(data: bytes, size: int, encoding: str) -> Array:
    """The inverse of `encode`, up to its loss; raises InvalidInput for bytes that do not encode such a vector."""
    check_size(len(data), size, encoding)
    if encoding == INT8:
        return _decode_int8(data, size)
    if encoding == TOP_K:
        return _decode_top_k(data, size)
    return np.frombuffer(data, "<f4")


def check_size(size_bytes: int, size: int, encoding: str) -> None:
    """Raises InvalidInput when that many bytes cannot encode a vector of this size; called before allocating."""
    if encoding == TOP_K:
        good = size_bytes % 8 == 0 and size_bytes <= 8 * size
        wanted = f"a multiple of 8 up to {8 * size}"
    elif encoding in (NONE, INT8):
        exact = 4 * size if encoding == NONE else size + 4 * math.ceil(size / _INT8_BLOCK)
        good, wanted = size_bytes == exact, str(exact)
    else:
        known = ", ".join(ENCODINGS)
        raise InvalidInput(f"update encoding must be one of {known}, got {encoding!r}", reason="UPDATE_ENCODING")
    if not good:
        raise InvalidInput(
            f"an update of {size} numbers as {encoding} must have {wanted} bytes, got {size_bytes}",
            reason="UPDATE_SIZE",
        )


class ErrorFeedback:
    """Adds the error of the last update to the next (Seide et al. 2014; Karimireddy et al. 2019)."""

    def __init__(self, size: int) -> None:
        self.residual = np.zeros(size, np.float32)
        # The residual to keep if the last encoded update is accepted.
        self._left: Array | None = None

    def encode(self, vector: Array, encoding: str, ratio: float = 0.01) -> bytes:
        """The bytes to send; nothing changes until `settle`."""
        wanted = vector + self.residual
        data = encode(wanted, encoding, ratio)
        self._left = wanted - decode(data, len(wanted), encoding)
        return data

    def settle(self, *, taken: bool) -> None:
        """Records whether the last update was accepted. Over accepted updates, the sent values plus the residual equal
        the given values. A rejected update leaves no residual: none of it reached the model."""
        if taken and self._left is not None:
            self.residual = self._left
        self._left = None


def _encode_int8(vector: Array) -> bytes:
    size = len(vector)
    padded = np.zeros(math.ceil(size / _INT8_BLOCK) * _INT8_BLOCK, np.float32)
    padded[:size] = vector
    rows = padded.reshape(-1, _INT8_BLOCK)
    scales = np.abs(rows).max(axis=1) / np.float32(_LEVELS)
    steps = np.rint(rows / np.where(scales > 0.0, scales, 1.0)[:, None]).astype(np.int8)
    return b"".join((scales.astype("<f4").tobytes(), steps.reshape(-1)[:size].tobytes()))


def _decode_int8(data: bytes, size: int) -> Array:
    count = math.ceil(size / _INT8_BLOCK)
    scales = np.frombuffer(data, "<f4", count)
    steps = np.frombuffer(data, np.int8, size, offset=4 * count).astype(np.float32)
    for row in range(count):
        steps[row * _INT8_BLOCK : (row + 1) * _INT8_BLOCK] *= scales[row]
    return steps


def _encode_top_k(vector: Array, ratio: float) -> bytes:
    kept = min(len(vector), max(1, math.ceil(ratio * len(vector))))
    largest = np.argpartition(np.abs(vector), len(vector) - kept)[len(vector) - kept :]
    chosen = np.sort(largest)
    return chosen.astype("<u4").tobytes() + vector[chosen].astype("<f4").tobytes()


def _decode_top_k(data: bytes, size: int) -> Array:
    kept = len(data) // 8
    chosen, values = np.frombuffer(data, "<u4", kept), np.frombuffer(data, "<f4", kept, offset=4 * kept)
    if kept and (int(chosen[-1]) >= size or not (np.diff(chosen.astype(np.int64)) > 0).all()):
        raise InvalidInput(
            f"indices of a top_k update must increase and be below {size}, the last is {int(chosen[-1])}",
            reason="UPDATE_ENCODING",
        )
    vector = np.zeros(size, np.float32)
    vector[chosen] = values
    return vector
