"""Versions of a federation's model on disk: written whole or not at all, the newest few kept."""

import errno
import hashlib
import itertools
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from parlmesh.digests import fast_hasher
from parlmesh.durable_files import sync_folder
from parlmesh.errors import FailedPrecondition, NotFound
from parlmesh.federation.model_file import model_header, other_tensors
from parlmesh.federation.schema import ModelSchema
from parlmesh.types import Array
from parlmesh.wire.chunks import MODEL_DATA, chunk_to_wire

# A node that was asked a few versions ago can still fetch the model it starts from.
_KEPT = 4
CHUNK_BYTES = 1 << 19
# Nodes fetch a version at about the same time, so messages encoded for one are reused for the next.
_ENCODED_CHUNKS = 8


class _Digests:
    """Both digests of a file, computed in one pass."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._strong, self._fast = hashlib.sha256(), fast_hasher()

    def update(self, data: memoryview) -> None:
        self._strong.update(data)
        self._fast.update(data)
        self.size_bytes += len(data)

    @property
    def strong(self) -> str:
        return self._strong.hexdigest()

    @property
    def fast(self) -> bytes:
        return self._fast.digest()


class StoredModel:
    """A version as it is served: read from its file, which the page cache holds anyway."""

    def __init__(self, version: int, path: Path, digests: _Digests | None = None) -> None:
        self.version = version
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY)
        if digests is None:
            digests = _Digests()
            for chunk in self.chunks():
                digests.update(memoryview(chunk))
        self.digest, self.checksum, self.size_bytes = digests.strong, digests.fast, digests.size_bytes
        self._encoded: OrderedDict[int, bytes] = OrderedDict()

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def chunks(self) -> Iterator[bytes]:
        """The file, piece by piece."""
        start = 0
        while chunk := os.pread(self._descriptor, CHUNK_BYTES, start):
            yield chunk
            start += len(chunk)

    def encoded(self) -> Iterator[bytes]:
        """The file as messages whose only field is `data`."""
        for start in range(0, self.size_bytes, CHUNK_BYTES):
            message = self._encoded.get(start)
            if message is None:
                message = chunk_to_wire(MODEL_DATA, os.pread(self._descriptor, CHUNK_BYTES, start))
                self._encoded[start] = message
                while len(self._encoded) > _ENCODED_CHUNKS:
                    self._encoded.popitem(last=False)
            yield message


class ModelFiles:
    """The models of one federation."""

    def __init__(self, folder: Path, schema: ModelSchema, metadata: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._schema = schema
        self.size = schema.size
        self._header = model_header(schema, metadata)

    def path(self, version: int) -> Path:
        """The file of a version."""
        return self._folder / f"v{version:08d}.safetensors"

    @property
    def newest(self) -> int:
        """The highest version kept; 0 if there is none."""
        names = (path.stem[1:] for path in self._folder.glob("v*.safetensors"))
        return max((int(name) for name in names if name.isdigit()), default=0)

    def first(self, tensors: Mapping[str, Array]) -> None:
        """Writes version 1."""
        others = b"".join(np.ascontiguousarray(tensors[t.name]).tobytes() for t in other_tensors(self._schema))
        joined = (np.ascontiguousarray(tensors[t.name], "<f4") for t in self._schema.joined)
        self._write(1, (array.reshape(-1).view(np.uint8).data for array in joined), others)

    def derive(self, base: int, parts: Callable[[], Iterator[memoryview]]) -> StoredModel:
        """Writes version base + 1: the parts joined are its vector, and all other tensors are the base's."""
        with self.path(base).open("rb") as file:
            file.seek(len(self._header) + 4 * self._schema.size)
            others = file.read()
        model = self._write(base + 1, parts(), others)
        for old in sorted(self._folder.glob("v*.safetensors"))[:-_KEPT]:
            old.unlink()
        return model

    def reader(self, version: int) -> "VectorReader":
        """A reader of a version's joined numbers."""
        return VectorReader(self.path(version), len(self._header))

    def whole(self, version: int, digest: str) -> StoredModel:
        """A version, unchanged since it was written; NotFound if it is damaged. An empty digest is not compared."""
        model = StoredModel(version, self.path(version))
        if digest and model.digest != digest:
            raise NotFound(f"model version {version} is damaged on disk: {self.path(version)}", reason="MODEL_DAMAGED")
        return model

    def kept(self, version: int, newest: StoredModel, digest: str) -> StoredModel:
        """A version that is still kept and undamaged; 0 = the newest."""
        if version in (0, newest.version):
            return newest
        try:
            return self.whole(version, digest)
        except FileNotFoundError:
            text = f"model version {version} is not kept; the newest is {newest.version}"
            raise NotFound(text, reason="MODEL_VERSION") from None

    def _write(self, version: int, parts: Iterator[memoryview], others: bytes) -> StoredModel:
        final = self.path(version)
        partial = final.with_suffix(".partial")
        digests = _Digests()
        with partial.open("wb") as file:
            for part in itertools.chain([memoryview(self._header)], parts, [memoryview(others)]):
                file.write(part)
                digests.update(part)
            file.flush()
            os.fdatasync(file.fileno())
        if partial.stat().st_size != len(self._header) + 4 * self._schema.size + len(others):
            raise FailedPrecondition(f"model version {version} was not written whole")
        partial.replace(final)
        sync_folder(self._folder)
        return StoredModel(version, final, digests)


class VectorReader:
    """Reads ranges of a model's joined numbers."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        self._offset = offset

    def read(self, start: int, stop: int) -> Array:
        """float32 [stop - start]; OSError when the file was cut."""
        data = os.pread(self._descriptor, 4 * (stop - start), self._offset + 4 * start)
        if len(data) < 4 * (stop - start):
            raise OSError(errno.EIO, "the model was cut while it was in use", str(self._path))
        return np.frombuffer(data, "<f4")

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)
