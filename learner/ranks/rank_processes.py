"""The other ranks: children of this process, or started by a launcher such as torchrun."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn, Protocol

from parlmesh.exit_codes import EXIT_TRY_AGAIN
from parlmesh.processes.child_process import kill_session, last_words, spawn
from parlmesh.processes.process_exit import Process
from parlmesh.telemetry import get_logger

from .collectives import Group, RankLost, dist
from .torchrun import Launcher

log = get_logger("parlmesh.learner")

# Other ranks wait for orders as long as a run is paused; rank 0 notices ranks that do not answer.
PATIENCE_SECONDS = 90 * 24 * 3600.0
LOOPBACK = "127.0.0.1"


class Members(Protocol):
    """The ranks besides this one."""

    def joined(self) -> Group:
        """A group of all ranks, whatever became of the previous one; RankLost when it cannot be formed now."""

    def close(self) -> None:
        """Ends them, or lets them go."""


class Children:
    """Processes on this machine that die with this one."""

    def __init__(self, size: int, folder: Path, seconds: float) -> None:
        self._size, self._folder, self._seconds = size, folder, seconds
        self._processes: list[Process] = []
        self._meeting: tempfile.TemporaryDirectory[str] | None = None

    def joined(self) -> Group:
        """Restarts all of them."""
        self.close()
        self._meeting = tempfile.TemporaryDirectory(prefix="parlmesh-ranks-")
        meeting = Path(self._meeting.name) / "store"
        command = [sys.executable, "-m", __name__.rpartition(".")[0], str(meeting), str(self._size)]
        for rank in range(1, self._size):
            environment = {**os.environ, "LOCAL_RANK": str(rank)}
            self._processes.append(spawn([*command, str(rank)], self._log(rank), environment))
        try:
            return Group(file_store(meeting, self._size), 0, self._size, seconds=self._seconds, host=LOOPBACK)
        except RankLost as error:
            words = last_words(self._log(1))
            raise RankLost(f"{error}; rank 1 said: {words or 'nothing'} (log {self._log(1)})") from None

    def close(self) -> None:
        """Kills them: they have no state to lose."""
        while self._processes:
            process = self._processes.pop()
            kill_session(process.pid)
            process.reap()
        if self._meeting is not None:
            self._meeting.cleanup()
            self._meeting = None

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.log"


class Launched:
    """Ranks that a launcher starts and restarts: all together, including this one."""

    def __init__(self, launcher: Launcher, seconds: float) -> None:
        self._launcher, self._seconds = launcher, seconds
        self._group: Group | None = None

    def joined(self) -> Group:
        """The group; only once, since a launcher does not replace single ranks."""
        if self._group is not None:
            _leave(
                "another rank has died; the launcher restarts all ranks, and the run resumes from its newest checkpoint"
            )
        try:
            self._group = Group(self._launcher.store(), 0, self._launcher.size, seconds=self._seconds)
        except RankLost as error:
            _leave(str(error))
        return self._group

    def close(self) -> None:
        """Lets the other ranks end cleanly."""
        if self._group is not None:
            for rank in range(1, self._launcher.size):
                try:
                    self._group.send(rank, {"do": "end"})
                except RankLost:
                    log.warning("rank_lost", rank=rank)


def file_store(meeting: Path, size: int) -> Any:
    """The address at which ranks on one machine find each other."""
    return dist.FileStore(str(meeting), size)


def _leave(why: str) -> NoReturn:
    """Exits immediately, so that no end of the run is recorded: it resumes from its checkpoint."""
    log.error("ranks_lost", reason=why, exit_code=EXIT_TRY_AGAIN)
    sys.stderr.flush()
    os._exit(EXIT_TRY_AGAIN)
