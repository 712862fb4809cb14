"""A node's memory between tasks and over restarts: detector and threshold states, the lease, past answers, actions."""

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from parlmesh.errors import FailedPrecondition
from parlmesh.sqlite_errors import SQLITE_ERRORS
from parlmesh.telemetry import get_logger

log = get_logger("parlmesh.mapek")
_WAIT_SECONDS = 5.0
_KEPT_ANSWERS = 1000
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS states (loop TEXT, name TEXT, state TEXT NOT NULL, PRIMARY KEY (loop, name));
CREATE TABLE IF NOT EXISTS answers (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, answer TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS lease (
    one INTEGER PRIMARY KEY CHECK (one = 1), owner TEXT NOT NULL, until REAL NOT NULL, boot TEXT NOT NULL,
    fence INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS deeds (
    number INTEGER PRIMARY KEY AUTOINCREMENT, decision TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
    target TEXT NOT NULL, parameters TEXT NOT NULL, undo TEXT, state TEXT NOT NULL, until REAL NOT NULL,
    boot TEXT NOT NULL, timeout REAL NOT NULL, tries INTEGER NOT NULL, detail TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Lease:
    """The loop that may act on the node, and for how long from now."""

    granted: bool
    owner: str
    seconds: float
    fence: int
    """Grows with every new owner."""


class NodeState:
    """One SQLite file per node, shared by its actors. Every change is one transaction."""

    def __init__(self, folder: Path, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        readable = re.sub(r"[^A-Za-z0-9_-]", "_", node)[:60]
        # The name comes from a task, so it is never used as a path unchanged.
        self._file = folder / f"{readable}-{sha256(node.encode()).hexdigest()[:12]}.sqlite"
        self._clock = clock

    def answered(self, answer_id: str) -> dict[str, Any] | None:
        """The stored answer of a task with this id, if there is one."""
        with self.transaction() as database:
            row = database.execute("SELECT answer FROM answers WHERE id = ?", (answer_id,)).fetchone()
        return _object(row[0]) if row else None

    def answer(self, answer_id: str, answer: dict[str, Any]) -> None:
        """Stores the answer, in case the task runs again."""
        with self.transaction() as database:
            _keep(database, answer_id, answer)

    def step(
        self,
        loop: str,
        answer_id: str,
        change: Callable[[dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]],
    ) -> dict[str, Any]:
        """Advances a loop's states by one reading, once per id, and returns the answer.

        `change` gets the states by name and returns the changed ones and the answer.
        """
        with self.transaction() as database:
            row = database.execute("SELECT answer FROM answers WHERE id = ?", (answer_id,)).fetchone()
            if row and (before := _object(row[0])) is not None:
                return before
            rows = database.execute("SELECT name, state FROM states WHERE loop = ?", (loop,))
            states = {str(name): found for name, state in rows if (found := _value(state)) is not None}
            changed, answer = _changed(change, states, self._file)
            database.executemany(
                "INSERT OR REPLACE INTO states VALUES (?, ?, ?)",
                [(loop, name, json.dumps(state)) for name, state in changed.items()],
            )
            _keep(database, answer_id, answer)
        return answer

    def acquire(self, owner: str, seconds: float) -> Lease:
        """Takes or renews the lease, or tells who holds it."""
        with self.transaction() as database:
            now, boot = self._clock(), boot_id()
            row = database.execute("SELECT owner, until, boot, fence FROM lease").fetchone()
            if row and not (isinstance(row[1], float) and isinstance(row[3], int)):
                raise FailedPrecondition(f"the lease in {self._file} cannot be read", reason="NODE_MEMORY")
            if row and row[0] != owner and row[2] == boot and row[1] > now:
                return Lease(False, row[0], row[1] - now, row[3])
            fence = (row[3] if row else 0) + (not row or row[0] != owner)
            database.execute("INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?, ?)", (owner, now + seconds, boot, fence))
        return Lease(True, owner, seconds, fence)

    def now(self) -> float:
        """The time on the clock that deadlines use."""
        return self._clock()

    def exists(self) -> bool:
        """Whether the node's file exists."""
        return self._file.exists()

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Holds the write lock from the first read to the commit; `durable` also survives a power cut."""
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with closing(sqlite3.connect(self._file, timeout=_WAIT_SECONDS, isolation_level=None)) as database:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                database.executescript(_SCHEMA)
                database.execute("BEGIN IMMEDIATE")
                try:
                    yield database
                except BaseException:
                    if database.in_transaction:
                        database.execute("ROLLBACK")
                    raise
                database.execute("COMMIT")
        except SQLITE_ERRORS as error:
            raise FailedPrecondition(
                f"{self._file} cannot be used as a node's memory: {str(error)!a:.300}", reason="NODE_MEMORY"
            ) from error


def _value(text: object) -> Any:
    """None for a damaged value: only that value is forgotten."""
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _object(text: object) -> dict[str, Any] | None:
    found = _value(text)
    return found if isinstance(found, dict) else None


def _changed(
    change: Callable[[dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]], states: dict[str, Any], file: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Starts with empty states when the saved ones are damaged: the learned values are lost, the reading is not."""
    try:
        return change(states)
    except Exception as error:
        if not states:
            raise
        log.error("node_states_damaged", path=str(file), error=repr(error)[:300], advice="the detectors start over")
        return change({})


def _keep(database: sqlite3.Connection, answer_id: str, answer: dict[str, Any]) -> None:
    database.execute("INSERT OR REPLACE INTO answers (id, answer) VALUES (?, ?)", (answer_id, json.dumps(answer)))
    database.execute("DELETE FROM answers WHERE number <= (SELECT MAX(number) FROM answers) - ?", (_KEPT_ANSWERS,))


def boot_id() -> str:
    """Identifies this boot: the monotonic clock restarts with the machine, so leases of an earlier boot are void."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
