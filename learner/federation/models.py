"""Versions of a federation's model on disk: safetensors files, written whole or not at all, the newest few kept.

The joined tensors come first, in the order of their names, so that they are one stretch of float32 numbers.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy

from parlmesh.errors import FailedPrecondition
from parlmesh.federation.schema import MEAN, ModelSchema, TensorSpec
from parlmesh.types import Array

_DTYPES = {
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "bool": "BOOL",
}
# A node that was asked some versions ago can still fetch what it is to start from.
_KEPT = 4
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A version as it is served: its file in chunks."""

    version: int
    digest: str
    size_bytes: int
    chunks: tuple[bytes, ...]


class ModelFiles:
    """The models of one federation."""

    def __init__(self, folder: Path, schema: ModelSchema, metadata: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._schema = schema
        self._header = _header(schema, metadata)

    def path(self, version: int) -> Path:
        """Where a version lies."""
        return self._folder / f"v{version:08d}.safetensors"

    def first(self, tensors: Mapping[str, Array]) -> None:
        """Version 1."""
        others = b"".join(np.ascontiguousarray(tensors[t.name]).tobytes() for t in _others(self._schema))
        vector = self._schema.flatten(tensors)
        self._write(1, lambda: iter([vector.tobytes()]), others)

    def derive(self, base: int, parts: Callable[[], Iterator[bytes]]) -> None:
        """Version base + 1: the parts joined are its vector, all other tensors are the base's."""
        with self.path(base).open("rb") as file:
            file.seek(len(self._header) + 4 * self._schema.size)
            others = file.read()
        self._write(base + 1, parts, others)
        for old in sorted(self._folder.glob("v*.safetensors"))[:-_KEPT]:
            old.unlink()

    def reader(self, version: int) -> "VectorReader":
        """The joined numbers of a version."""
        return VectorReader(self.path(version), len(self._header))

    def load(self, version: int) -> StoredModel:
        """A version in chunks, with its digest."""
        digest, chunks, size = hashlib.sha256(), [], 0
        with self.path(version).open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                chunks.append(chunk)
                size += len(chunk)
        return StoredModel(version, digest.hexdigest(), size, tuple(chunks))

    def tensors(self, version: int) -> dict[str, Array]:
        """A version by tensors."""
        return safetensors.numpy.load(self.path(version).read_bytes())

    def _write(self, version: int, parts: Callable[[], Iterator[bytes]], others: bytes) -> None:
        final = self.path(version)
        partial = final.with_suffix(".partial")
        with partial.open("wb") as file:
            file.write(self._header)
            for part in parts():
                file.write(part)
            file.write(others)
            file.flush()
            os.fdatasync(file.fileno())
        if partial.stat().st_size != len(self._header) + 4 * self._schema.size + len(others):
            raise FailedPrecondition(f"model version {version} was not written whole")
        partial.replace(final)


class VectorReader:
    """Reads stretches of a model's joined numbers."""

    def __init__(self, path: Path, offset: int) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._offset = offset

    def read(self, start: int, stop: int) -> Array:
        """float32 [stop - start]"""
        return np.frombuffer(os.pread(self._descriptor, 4 * (stop - start), self._offset + 4 * start), "<f4")

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._descriptor)


def _others(schema: ModelSchema) -> list[TensorSpec]:
    return [tensor for tensor in schema.tensors if tensor.rule != MEAN]


def _header(schema: ModelSchema, metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    start = 0
    for tensor in (*schema.joined, *_others(schema)):
        stop = start + tensor.size * np.dtype(tensor.dtype).itemsize
        entries[tensor.name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(entries).encode()
    # The numbers begin at a multiple of 8, as the format wants them to.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
