"""Detects files that change while a process runs. Checks on demand, at most once a second."""

from collections.abc import Callable, Sequence
from pathlib import Path

LOOK_AGAIN_SECONDS = 1.0

Version = tuple[int, int, int] | None


class WatchedFiles:
    """Reports when any of a few files has changed."""

    def __init__(self, files: Sequence[Path | None], monotonic: Callable[[], float]) -> None:
        self._files = tuple(file for file in files if file is not None)
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._versions = self._look()

    def changed(self) -> bool:
        """Whether any file was created, deleted or modified since the last call that returned True."""
        if self._monotonic() - self._looked_at < LOOK_AGAIN_SECONDS:
            return False
        self._looked_at = self._monotonic()
        versions = self._look()
        if versions == self._versions:
            return False
        self._versions = versions
        return True

    def _look(self) -> list[Version]:
        return [_version(file) for file in self._files]


def _version(file: Path) -> Version:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
