"""Blobs as one process of a fleet uses them: large arrays out, references in. Off until the scheduler says where."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeGuard

import numpy as np

from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.types import Array

from .folder import BlobFolder, name_behind
from .references import Reference, check_name, name_of

Tensors: TypeAlias = Mapping[str, Array | Reference]
# Older releases look for another name: they lock nothing that they read, and are sent it as if from another host.
PROOF = ".proof-2"
NO_ROOM = "BLOB_FOLDER"
_NUMBERS = "biuf"


class Blobs:
    """Where this process keeps large arrays, and under which names. One that is not told keeps none."""

    def __init__(self) -> None:
        self.folder: BlobFolder | None = None
        self.shared = False
        """Whether it is the scheduler's own folder: then nothing is ever sent."""
        self.reuses = False
        """Whether an array that shows a blob is that blob: where a task that has it as an argument answers it."""
        self.writer = ""
        self.least_bytes: float = math.inf
        self.largest_bytes = 0

    @property
    def told(self) -> tuple[str, ...]:
        """For another process of this host; see `of`."""
        if self.folder is None:
            return ()
        return str(self.folder.path), self.writer, str(self.least_bytes), str(self.largest_bytes)

    @classmethod
    def of(cls, told: Sequence[str]) -> "Blobs":
        """The same in another process."""
        blobs = cls()
        if told:
            blobs.reuses = True
            folder, blobs.writer, least_bytes, largest_bytes = told
            blobs.folder = BlobFolder(Path(folder))
            blobs.least_bytes, blobs.largest_bytes = float(least_bytes), int(largest_bytes)
        return blobs

    def share(self, folder: str, proof: str, writer: str, least_bytes: int, largest_bytes: int) -> bool:
        """Uses the scheduler's folder when this process sees it; False when it does not."""
        path = Path(folder)
        if not proof or not _proven(path, proof):
            return False
        if self.folder is None or self.folder.path != path:
            self.folder = BlobFolder(path)
        self.shared, self.writer = True, writer
        self.least_bytes, self.largest_bytes = least_bytes or math.inf, largest_bytes
        return True

    def cache(self, folder: Path, writer: str, least_bytes: int, largest_bytes: int, *, keeps: bool) -> None:
        """Uses a folder of this host; `keeps`: what tasks answer goes there too, and is sent by another."""
        if self.folder is None or self.folder.path != folder:
            self.folder = BlobFolder(folder)
        self.shared, self.writer = False, writer
        self.least_bytes, self.largest_bytes = (least_bytes or math.inf) if keeps else math.inf, largest_bytes

    def kept(self, tensors: Mapping[str, Array | Reference], life: str) -> Tensors:
        """Large arrays as references, their bytes in the folder; the others as they are."""
        if self.folder is None or not any(map(self._is_large, tensors.values())):
            return tensors
        return {name: self._kept(each, life) if self._is_large(each) else each for name, each in tensors.items()}

    def _kept(self, array: Array, life: str) -> Array | Reference:
        """Where there is no room an array goes inside the message, as long as it fits there."""
        try:
            return self.keep(array, life)
        except InvalidInput as error:
            if error.reason != NO_ROOM:
                raise
            return array

    def _is_large(self, given: object) -> TypeGuard[Array]:
        """What is no array of numbers is left to the codec, which says so."""
        return isinstance(given, np.ndarray) and given.nbytes >= self.least_bytes and given.dtype.kind in _NUMBERS

    def keep(self, array: Array, life: str) -> Reference:
        """One array; what is a blob already is not written again."""
        if self.folder is None:
            raise FailedPrecondition("the scheduler keeps no blobs, or is on another host", reason="NO_BLOBS")
        if not isinstance(array, np.ndarray) or array.dtype.kind not in _NUMBERS or not array.nbytes:
            raise InvalidInput(f"{array!r:.60} is no array of numbers, or an empty one", reason="TENSOR_DTYPE")
        if array.nbytes > self.largest_bytes:
            raise InvalidInput(
                f"the array has {array.nbytes} bytes; the limit is {self.largest_bytes} (blobs.largest_bytes)",
                reason="BLOB_TOO_LARGE",
            )
        if array.dtype.itemsize > 1:
            array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        name = name_behind(array) if self.reuses else ""
        if not name or self.folder.size(name) != array.nbytes:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            name = name_of(self.writer, life, data)
            try:
                self.folder.write(name, data)
            except OSError as error:
                text = f"an array of {array.nbytes} bytes cannot be kept in {self.folder.path}: {error.strerror}"
                raise InvalidInput(text, reason=NO_ROOM) from error
        return Reference(name, array.dtype, array.shape)

    def load(self, reference: Reference) -> Array:
        """The array, mapped and read-only."""
        check_name(reference.name)
        if self.folder is None:
            raise FailedPrecondition(
                f"{reference.name} is kept on the host of the scheduler, and this process is on another",
                reason="NO_BLOBS",
            )
        if not reference.nbytes:
            return np.empty(reference.shape, reference.dtype)
        return self.folder.read(reference.name, reference.nbytes).view(reference.dtype).reshape(reference.shape)


def _proven(path: Path, proof: str) -> bool:
    try:
        with (path / PROOF).open("rb") as file:
            return file.read(len(proof.encode()) + 1) == proof.encode()
    except OSError:
        return False
