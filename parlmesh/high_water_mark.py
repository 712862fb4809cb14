"""A small file beside a store or a journal that records how far it got.

A truncated or deleted store looks like one that never held more. The witness is written after each commit without
waiting for the disk, and it survives any death of the process. So it is never ahead of the durable state, and a store
that is behind its witness has lost something it had acknowledged.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from parlmesh.telemetry import get_logger

log = get_logger("parlmesh")

_MAGIC = b"parlmesh"
# magic, identity of the store, its last row or byte, the machine's start; then a checksum
_SLOT = struct.Struct("<8sQQ16s")
_SUM = struct.Struct("<I")
_SIZE = _SLOT.size + _SUM.size
# Written alternately, so that one is always intact.
_SLOTS = 2
_BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")


class Seen(NamedTuple):
    """The last known extent of a store; `last_id` is the number of its last row or byte."""

    identity: int
    last_id: int
    same_boot: bool


class Witness:
    """Owned by one thread at a time, like its store."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".witness")
        self._file = -1
        self._identity = 0
        self._turn = 0
        self._boot = _boot()
        self._failing = False

    def read(self) -> Seen | None:
        """The newest intact record; None when there is no file or no intact record in it."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        slots = [data[start : start + _SIZE] for start in range(0, _SLOTS * _SIZE, _SIZE)]
        found = [_SLOT.unpack_from(slot) for slot in slots if _whole(slot)]
        if not found:
            log.error("witness_unreadable", path=str(self.path))
            return None
        _, identity, last_id, boot = max(found, key=lambda slot: slot[2])
        return Seen(identity, last_id, boot == self._boot)

    def begin(self, identity: int, last_id: int) -> None:
        """Starts to record for this store, replacing whatever the file recorded before."""
        self.close()
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        self._identity = identity
        for _ in range(_SLOTS):
            self._write(last_id)
        os.fsync(self._file)

    def tell(self, identity: int, last_id: int) -> None:
        """Like `note`, for callers that do not keep the file open."""
        try:
            self.begin(identity, last_id)
        except OSError as error:
            log.error("witness_failed", path=str(self.path), error=str(error))
        finally:
            self.close()

    def note(self, last_id: int) -> None:
        """Records a commit. A failure is logged and does not undo the commit."""
        if self._file < 0:
            return
        try:
            self._write(last_id)
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.error("witness_failed", path=str(self.path), error=str(error))
            self._failing = True

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, last_id: int) -> None:
        slot = _SLOT.pack(_MAGIC, self._identity, last_id, self._boot)
        self._turn = (self._turn + 1) % _SLOTS
        os.pwrite(self._file, slot + _SUM.pack(zlib.crc32(slot)), self._turn * _SIZE)


def _whole(slot: bytes) -> bool:
    if len(slot) < _SIZE or not slot.startswith(_MAGIC):
        return False
    return bool(_SUM.unpack_from(slot, _SLOT.size)[0] == zlib.crc32(slot[: _SLOT.size]))


def _boot() -> bytes:
    """An id that changes at every boot of the machine."""
    try:
        return bytes.fromhex(_BOOT_FILE.read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)
