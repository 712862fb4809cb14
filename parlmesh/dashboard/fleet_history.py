"""The fleet's numbers over time: the last hour in memory, several days in a file that survives the page."""

import sqlite3
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from parlmesh.errors import FailedPrecondition
from parlmesh.sqlite_errors import SQLITE_ERRORS
from parlmesh.telemetry import get_logger

log = get_logger("parlmesh.dashboard")

SAMPLE_SECONDS = 5.0
KEPT_SECONDS = 7 * 86_400.0
MOST_POINTS = 720
"""An hour of samples, as many as a chart shows."""
_PRUNE_EVERY = 720


class Sample(NamedTuple):
    """The fleet at one moment; times are wall-clock seconds."""

    time: float
    tasks_per_second: float
    queued: int
    running: int
    ready: int
    failed: int
    """Ended FAILED or QUARANTINED since the scheduler started."""


class History:
    """Takes a sample every few seconds; one writer. A file that cannot be opened is an error. If it cannot be written
    later, this is logged once, and the last hour stays in memory."""

    def __init__(self, file: Path | None) -> None:
        self._recent: deque[Sample] = deque(maxlen=MOST_POINTS)
        self._written = 0
        self._failing = False
        self._database: sqlite3.Connection | None = None
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._open(file)
            except SQLITE_ERRORS as error:
                self.close()
                raise FailedPrecondition(
                    f"{file} cannot be used as the fleet's history: {str(error)!a:.300}"
                ) from error

    def _open(self, file: Path) -> None:
        # Samples are written in a thread, one at a time.
        self._database = database = sqlite3.connect(file, check_same_thread=False)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute(
            "CREATE TABLE IF NOT EXISTS samples (time REAL PRIMARY KEY, tasks_per_second REAL, queued INTEGER,"
            " running INTEGER, ready INTEGER, failed INTEGER)"
        )
        columns = ", ".join(Sample._fields)
        # Damaged rows are skipped.
        numbers = " AND ".join(f"typeof({name}) IN ('real', 'integer')" for name in Sample._fields)
        rows = database.execute(
            f"SELECT {columns} FROM samples WHERE {numbers} ORDER BY time DESC LIMIT ?",  # noqa: S608
            (MOST_POINTS,),
        ).fetchall()
        self._recent.extend(Sample(*row) for row in reversed(rows))

    @property
    def recent(self) -> Sequence[Sample]:
        """The last hour, oldest first."""
        return self._recent

    def due(self, now: float) -> bool:
        return not self._recent or not 0 <= now - self._recent[-1].time < SAMPLE_SECONDS

    def add(self, sample: Sample) -> None:
        self._recent.append(sample)
        if self._database is None:
            return
        try:
            self._write(self._database, sample)
        except SQLITE_ERRORS as error:
            # A full disk may have room again later; a page without a file still shows the last hour.
            if not self._failing:
                log.error(
                    "history_not_written", error=f"{str(error)!a:.300}", advice="the page keeps the last hour only"
                )
            self._failing = True
        else:
            self._failing = False

    def _write(self, database: sqlite3.Connection, sample: Sample) -> None:
        with database:
            database.execute("INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?, ?)", sample)
            self._written += 1
            if self._written % _PRUNE_EVERY == 1:
                database.execute("DELETE FROM samples WHERE time < ?", (sample.time - KEPT_SECONDS,))

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
