"""Files that change while a process runs. Looks at most once a second, when somebody asks."""

from collections.abc import Callable, Sequence
from pathlib import Path

LOOK_AGAIN_SECONDS = 1.0

Version = tuple[int, int, int] | None


class WatchedFiles:
    """Says when one of a few files is another one than before."""

    def __init__(self, files: Sequence[Path | None], monotonic: Callable[[], float]) -> None:
        self._files = tuple(file for file in files if file is not None)
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._versions = self._look()

    def changed(self) -> bool:
        """Whether any is new, gone or written since the last time this said so."""
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
