"""A file of TensorBoard events. TensorBoard's own writer takes longer to import than the rest of a learner's files."""

import itertools
import os
import socket
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SourceMetadata

_CASTAGNOLI = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_WRITER = "parlmesh.learner"
_numbers = itertools.count()


class EventFile:
    """Events are in the file when `add` returns. After an OSError its last record may be cut off, and a reader stops
    there: later ones belong in a new file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self._path = folder / name
        self._descriptor: int | None = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self.add(Event(wall_time=now, file_version="brain.Event:2", source_metadata=SourceMetadata(writer=_WRITER)))
        except BaseException:
            self.close()
            raise

    def add(self, event: Event) -> None:
        """Writes one event; OSError when the disk refuses."""
        if self._descriptor is None:
            raise OSError(9, "the file is closed", str(self._path))
        record = _record(event.SerializeToString())
        try:
            while record:
                record = record[os.write(self._descriptor, record) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def close(self) -> None:
        """Closes the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _record(data: bytes) -> bytes:
    """TensorFlow's framing: length, checksum of the length, data, checksum of the data; little-endian."""
    length = len(data).to_bytes(8, "little")
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted so that a checksum of data with checksums in it is not a special one."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
    return masked.to_bytes(4, "little")


def _row(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
    return crc


_TABLE = tuple(map(_row, range(256)))
