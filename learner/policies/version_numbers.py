"""The policy versions a run may publish. They are reserved on disk before they are used, many at a time, so that no
version is ever published twice, whenever the learner is killed. The run's uid is in the same file, so that both are
lost together: a run that may have forgotten its versions is never taken for the one it was.
"""

import secrets
from pathlib import Path

from pydantic import Field, ValidationError

from parlmesh.config import Config
from parlmesh.durable_files import replace_file
from parlmesh.telemetry import get_logger

VERSIONS_FILE = "versions.json"
# One write to disk covers this many updates.
_BLOCK = 1_000
log = get_logger("parlmesh.learner")


class _Reservation(Config):
    uid: str = Field(min_length=1)
    reserved: int = Field(ge=0)


class Versions:
    """The versions of one run. `first` is the first it may publish after this start."""

    def __init__(self, folder: Path, *, checkpoint: int = 0, unreserved: int = 0) -> None:
        """Starts after the reserved versions; a start without a reservation published at most `unreserved` past
        `checkpoint`."""
        self._file = folder / VERSIONS_FILE
        found = _read(self._file)
        self.uid = found.uid if found is not None else secrets.token_hex(8)
        self.reserved = found.reserved if found is not None else 0
        if found is None and checkpoint:
            checkpoint += unreserved
        self.first = max(checkpoint, self.reserved) + 1

    def lacks(self, version: int) -> bool:
        """Whether the version must be reserved before it is published."""
        return version > self.reserved

    def reserve(self, version: int) -> None:
        """Returns when this version and the next ones are reserved on disk. May be called in any thread."""
        self._write(version + _BLOCK - 1)

    def give_back(self, version: int) -> None:
        """Frees the reserved versions above this one, the run's last."""
        self._write(version)

    def _write(self, reserved: int) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, _Reservation(uid=self.uid, reserved=reserved).model_dump_json().encode() + b"\n")
        self.reserved = reserved


def uid_of(folder: Path) -> str:
    """The uid of the run in a folder; empty before it was started, or when the disk cannot be read."""
    try:
        found = _read(folder / VERSIONS_FILE)
    except OSError as error:
        log.error("versions_unreadable", path=str(folder / VERSIONS_FILE), error=repr(error))
        return ""
    return found.uid if found is not None else ""


def _read(file: Path) -> _Reservation | None:
    try:
        return _Reservation.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        log.error("versions_damaged", path=str(file), error=repr(error), advice="the run gets a new uid")
        return None
