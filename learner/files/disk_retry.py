"""Writes a run's files. A disk that refuses them holds up the run, and nothing is lost once it takes them again."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from ..runs.obstacles import Obstacles

T = TypeVar("T")

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 2.0
# A learner that stops does not wait forever: its runs resume from their older checkpoints.
_LEAVING_SECONDS = 5.0


class DiskRefuses(Exception):
    """The disk still refuses, and the learner is stopping."""


class Disk:
    """Calls functions that may be called again after an OSError."""

    def __init__(self, threads: Executor, obstacles: Obstacles) -> None:
        self._threads = threads
        self._obstacles = obstacles
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Allows only a few more tries, because the learner is stopping."""
        self._leaving.set()

    async def write(self, function: Callable[..., T], *arguments: Any) -> T:
        """Runs it in the run's thread until the disk accepts it; DiskRefuses only if the learner stops before."""
        loop, pause, since = asyncio.get_running_loop(), _FIRST_PAUSE_SECONDS, None
        while True:
            try:
                answer = await loop.run_in_executor(self._threads, function, *arguments)
            except OSError as error:
                self._obstacles.meet("disk", sentence_of(error))
                if self._leaving.is_set():
                    since = since or loop.time()
                    if loop.time() - since >= _LEAVING_SECONDS:
                        raise DiskRefuses(sentence_of(error)) from error
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            self._obstacles.clear("disk")
            return answer


def sentence_of(error: OSError) -> str:
    """The disk's error, with the file."""
    if not error.errno:
        return str(error)
    where = f" {os.fspath(error.filename)}" if isinstance(error.filename, str | os.PathLike) else " a file of the run"
    return f"cannot write{where}: {error.strerror or error}"
