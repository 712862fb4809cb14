"""A file of whole lines. What the disk refuses is kept and written later, in order."""

import os
from pathlib import Path

# A run that the disk holds up adds no lines, so few ever wait.
_MOST_UNWRITTEN_BYTES = 4 << 20


class Lines:
    """Appends; written when `add` returns, unless the disk refuses. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        # A line that a crash cut off is ended first.
        self.unwritten = b"\n" if _is_cut_off(path) else b""

    def add(self, line: str) -> None:
        """Never fails: what cannot be written waits in `unwritten`."""
        if len(self.unwritten) < _MOST_UNWRITTEN_BYTES:
            self.unwritten += line.encode() + b"\n"
        try:
            self.flush()
        except OSError:
            return

    def flush(self) -> None:
        """Writes what waits; OSError when the disk refuses, and then nothing is lost."""
        while self.unwritten:
            if self._descriptor is None:
                raise OSError(9, "the file is closed", str(self._path))
            try:
                written = os.write(self._descriptor, self.unwritten)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self._path)) from None
            self.unwritten = self.unwritten[written:]

    def close(self) -> None:
        """Frees the file; what still waits is lost."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _is_cut_off(path: Path) -> bool:
    if not path.stat().st_size:
        return False
    with path.open("rb") as before:
        before.seek(-1, os.SEEK_END)
        return before.read() != b"\n"
