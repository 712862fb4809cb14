"""Blobs as one process of a fleet uses them: it puts references in place of large arrays, and loads them again. Off
until the scheduler names a folder."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TypeAlias, TypeGuard

import numpy as np

from parlmesh.errors import FailedPrecondition, FleetError, InvalidInput
from parlmesh.types import Array

from .folder import BlobFolder, name_behind
from .free_space import cannot_keep
from .references import Reference, check_name, in_life, name_of

Tensors: TypeAlias = Mapping[str, Array | Reference]
# Older releases look for another name, so they get blobs sent as if on another host: they do not lock the files they
# read.
PROOF = ".proof-2"
# Most bytes of arrays inside one message: the default of queue.max_payload_bytes, less what surrounds the arrays.
_MOST_INSIDE = (4 << 20) - (64 << 10)
_RESERVE_BYTES = 4 << 10
_NUMBERS = "biuf"


class Blobs:
    """Keeps this process's large arrays. It keeps none until it knows the folder and its names."""

    def __init__(self) -> None:
        self.folder: BlobFolder | None = None
        self.shared = False
        """Whether the folder is the scheduler's own: then nothing is ever sent."""
        self.writer = ""
        self.least_bytes: float = math.inf
        self.largest_bytes = 0
        self.message_bytes = 0
        """Largest message: arrays for which the folder has no room go into it."""
        self.leaving: set[str] = set()
        """Names being released: their files may be removed at any moment, so the same bytes get another name."""

    @property
    def told(self) -> tuple[str, ...]:
        """These settings as text, for another process of this host; see `of`."""
        if self.folder is None:
            return ()
        numbers = (self.least_bytes, self.largest_bytes, self.message_bytes)
        return str(self.folder.path), self.writer, *map(str, numbers)

    @classmethod
    def of(cls, told: Sequence[str]) -> "Blobs":
        """The same settings in another process."""
        blobs = cls()
        if told:
            folder, blobs.writer, least_bytes, largest_bytes, message_bytes = told
            blobs.folder, blobs.least_bytes = BlobFolder(Path(folder)), float(least_bytes)
            blobs.largest_bytes, blobs.message_bytes = int(largest_bytes), int(message_bytes)
        return blobs

    def share(self, folder: str, proof: str, writer: str, least_bytes: int, largest_bytes: int) -> bool:
        """Uses the scheduler's folder if this process can see it; returns whether it can."""
        path = Path(folder)
        if not proof or not _proven(path, proof):
            return False
        if self.folder is None or self.folder.path != path:
            self.folder = BlobFolder(path)
        self.shared, self.writer = True, writer
        self.least_bytes, self.largest_bytes = least_bytes or math.inf, largest_bytes
        return True

    def cache(self, folder: Path, writer: str, least_bytes: int, largest_bytes: int, *, keeps: bool) -> None:
        """Uses a folder of this host; `keeps`: large results go there too, and another process sends them."""
        if self.folder is None or self.folder.path != folder:
            self.folder = BlobFolder(folder)
        self.shared, self.writer = False, writer
        self.least_bytes, self.largest_bytes = (least_bytes or math.inf) if keeps else math.inf, largest_bytes

    def kept(
        self,
        tensors: Mapping[str, Array | Reference],
        life: str,
        given: Collection[str] = (),
        names: set[str] | None = None,
    ) -> Tensors:
        """Puts large arrays into the folder and replaces them with references; see `keep`.

        Names that are not `given` are added to `names`, even if an error follows: those blobs are then not needed.
        """
        if self.folder is None or not any(map(self._is_large, tensors.values())):
            return tensors
        kept: dict[str, Array | Reference] = {}
        inside = 0
        for name, each in tensors.items():
            if not self._is_large(each):
                kept[name] = each
                continue
            try:
                kept[name] = reference = self.keep(each, life, given)
                if names is not None and reference.name not in given:
                    names.add(reference.name)
            except FleetError as error:
                # Arrays that cannot be kept go into the message, as long as they fit.
                inside += each.nbytes
                if isinstance(error, InvalidInput) or inside > min(self.message_bytes - _RESERVE_BYTES, _MOST_INSIDE):
                    raise
                kept[name] = each
        return kept

    def _is_large(self, given: object) -> TypeGuard[Array]:
        """Whether this is a large array of numbers; anything else is left to the codec, which reports errors."""
        return isinstance(given, np.ndarray) and given.nbytes >= self.least_bytes and given.dtype.kind in _NUMBERS

    def keep(self, array: Array, life: str, given: Collection[str] = ()) -> Reference:
        """Puts one array into the folder. An array that uses a `given` blob becomes a reference to it; its owner keeps
        it for the answer. Any other array is written, because the blob it uses may no longer be held."""
        if self.folder is None:
            raise FailedPrecondition("the scheduler keeps no blobs, or is on another host", reason="NO_BLOBS")
        if not isinstance(array, np.ndarray) or array.dtype.kind not in _NUMBERS or not array.nbytes:
            raise InvalidInput(f"{array!r:.60} is not an array of numbers, or is empty", reason="TENSOR_DTYPE")
        if array.nbytes > self.largest_bytes:
            raise InvalidInput(
                f"the array has {array.nbytes} bytes; the limit is {self.largest_bytes} (blobs.largest_bytes)",
                reason="BLOB_TOO_LARGE",
            )
        if array.dtype.itemsize > 1:
            array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        name = name_behind(array) if given else ""
        if name not in given or self.folder.size(name) != array.nbytes:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            name = name_of(self.writer, life, data)
            lives = count(1)
            while name in self.leaving:
                name = in_life(name, f"{life}-{next(lives)}")
            try:
                self.folder.write(name, data)
            except OSError as error:
                raise cannot_keep("an array", array.nbytes, self.folder.path, error) from error
        return Reference(name, array.dtype, array.shape)

    def forget(self, names: Iterable[str]) -> None:
        """Removes blobs that were never announced."""
        if self.folder is not None:
            for name in names:
                self.folder.remove(name)

    def load(self, reference: Reference) -> Array:
        """The referenced array, mapped and read-only."""
        check_name(reference.name)
        if self.folder is None:
            raise FailedPrecondition(
                f"{reference.name} is kept on the scheduler's host, and this process is on another",
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
