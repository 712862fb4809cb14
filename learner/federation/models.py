"""Versions of a federation's model on disk: written whole or not at all, the newest few kept."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from parlmesh.errors import FailedPrecondition
from parlmesh.federation.model_file import model_header, other_tensors
from parlmesh.federation.schema import ModelSchema
from parlmesh.types import Array

# A node that was asked some versions ago can still fetch what it is to start from.
_KEPT = 4
CHUNK_BYTES = 1 << 19


class StoredModel:
    """A version as it is served: read from its file, which the page cache holds anyway."""

    def __init__(self, version: int, path: Path) -> None:
        self.version = version
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY)
        digest, self.size_bytes = hashlib.sha256(), 0
        for chunk in self.chunks():
            digest.update(chunk)
            self.size_bytes += len(chunk)
        self.digest = digest.hexdigest()

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def chunks(self) -> Iterator[bytes]:
        """The file, piece by piece."""
        start = 0
        while chunk := os.pread(self._descriptor, CHUNK_BYTES, start):
            yield chunk
            start += len(chunk)


class ModelFiles:
    """The models of one federation."""

    def __init__(self, folder: Path, schema: ModelSchema, metadata: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._schema = schema
        self._header = model_header(schema, metadata)

    def path(self, version: int) -> Path:
        """Where a version lies."""
        return self._folder / f"v{version:08d}.safetensors"

    def first(self, tensors: Mapping[str, Array]) -> None:
        """Version 1."""
        others = b"".join(np.ascontiguousarray(tensors[t.name]).tobytes() for t in other_tensors(self._schema))
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
        """A version with its digest."""
        return StoredModel(version, self.path(version))

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
