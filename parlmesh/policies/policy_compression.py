"""Encodes a policy in fewer bytes. zstd and delta are lossless, bfloat16 is lossy."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .policy_file import METADATA, join_file, split_file

Encoding: TypeAlias = Literal["safetensors", "zstd", "bfloat16", "delta"]
LOSSY: frozenset[Encoding] = frozenset({"bfloat16"})

# Weights hardly compress; higher levels cost more and gain nothing.
_LEVEL = 1
_WORD = 4


def encode(encoding: Encoding, blob: bytes, base: bytes = b"") -> bytes:
    """The bytes to send instead of the blob; a delta needs a base of the same length."""
    if encoding == "zstd":
        return _compressed(blob)
    if encoding == "bfloat16":
        return _narrowed(blob)
    if encoding == "delta":
        return _compressed(_shuffled(_xor(blob, base)))
    return blob


def decode(encoding: Encoding, data: bytes, size_bytes: int, base: bytes = b"") -> bytes:
    """The inverse of `encode`; raises InvalidInput when the data does not decode to `size_bytes`."""
    if encoding == "zstd":
        return _decompressed(data, size_bytes)
    if encoding == "bfloat16":
        return _widened(data)
    if encoding == "delta":
        return _xor(_unshuffled(_decompressed(data, size_bytes)), base)
    return data


def _compressed(data: bytes) -> bytes:
    # Imported here, because only this encoding needs it.
    import zstandard

    return zstandard.ZstdCompressor(level=_LEVEL).compress(data)


def _decompressed(data: bytes, size_bytes: int) -> bytes:
    import zstandard

    try:
        # Read from the frame before anything is allocated.
        size = zstandard.frame_content_size(data)
        if size != size_bytes:
            raise InvalidInput(f"compressed policy unpacks to {size} bytes; {size_bytes} were announced")
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise InvalidInput(f"policy of {len(data)} bytes cannot be decompressed: {error}") from error


def _xor(left: bytes, right: bytes) -> bytes:
    if len(left) != len(right):
        raise InvalidInput(f"a delta needs a base of {len(left)} bytes, got {len(right)}")
    return np.bitwise_xor(np.frombuffer(left, np.uint8), np.frombuffer(right, np.uint8)).tobytes()


def _shuffled(data: bytes) -> bytes:
    """Groups the first bytes of all words, then the second ones: between versions, most high bytes are equal."""
    whole = len(data) - len(data) % _WORD
    planes = np.frombuffer(data, np.uint8, whole).reshape(-1, _WORD).T
    return planes.tobytes() + data[whole:]


def _unshuffled(data: bytes) -> bytes:
    whole = len(data) - len(data) % _WORD
    planes = np.frombuffer(data, np.uint8, whole).reshape(_WORD, -1).T
    return planes.tobytes() + data[whole:]


def _narrowed(blob: bytes) -> bytes:
    """The file with F32 rounded to the nearest BF16, ties to even."""
    return _converted(blob, "F32", "BF16", _to_bfloat16)


def _widened(data: bytes) -> bytes:
    return _converted(data, "BF16", "F32", lambda raw: np.frombuffer(raw, "<u2").astype("<u4") << 16)


def _to_bfloat16(raw: memoryview) -> Array:
    bits = np.frombuffer(raw, "<u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    # Rounding up would turn some NaNs into infinity or zero.
    return np.where(np.isnan(np.frombuffer(raw, "<f4")), np.uint32(0x7FC0), rounded).astype("<u2")


def _converted(blob: bytes, source: str, target: str, convert: Callable[[memoryview], Array]) -> bytes:
    header, body = split_file(blob)
    described = {name: value for name, value in header.items() if name != METADATA}
    parts: list[bytes | memoryview] = []
    end = 0
    try:
        for tensor in sorted(described.values(), key=lambda tensor: tensor["data_offsets"]):
            first, last = tensor["data_offsets"]
            part: bytes | memoryview = body[first:last]
            if tensor["dtype"] == source:
                part, tensor["dtype"] = convert(body[first:last]).tobytes(), target
            tensor["data_offsets"] = [end, end + len(part)]
            end += len(part)
            parts.append(part)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"policy of {len(blob)} bytes is not a safetensors file: {error!r}") from error
    return join_file(header, parts)
