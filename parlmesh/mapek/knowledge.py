"""A loop's SQLite memory: cycles, symptoms, decisions with their outcomes, and the actions that worked for each
symptom."""

import fcntl
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Self, TextIO

from parlmesh.errors import FailedPrecondition, NotFound
from parlmesh.sqlite_errors import SQLITE_ERRORS
from parlmesh.telemetry import get_logger

from .config import BreakerConfig
from .planning.circuit_breaker import Breaker
from .planning.cooldown import LastAction
from .types import Candidate, CycleReport, Decision, Health, Status, Symptom

VERSION = 1
_ENDED = (Status.WORKED, Status.FAILED, Status.ROLLED_BACK)
_DONE = (*_ENDED, Status.DRY_RUN, Status.UNKNOWN, Status.STARTED)
ELSEWHERE = 0.2
"""Weight of a try in another context; one in the same context counts 1."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS cycles (
    cycle INTEGER PRIMARY KEY, started REAL, seconds REAL, nodes INTEGER, sick INTEGER, unknown INTEGER
);
CREATE TABLE IF NOT EXISTS nodes (node TEXT PRIMARY KEY, seen REAL, health TEXT, why TEXT, unknown_cycles INTEGER);
CREATE TABLE IF NOT EXISTS symptoms (
    cycle INTEGER, time REAL, node TEXT, name TEXT, severity TEXT, value REAL, limit_ REAL, why TEXT
);
CREATE TABLE IF NOT EXISTS decisions (
    id TEXT PRIMARY KEY, cycle INTEGER, node TEXT, symptom TEXT, action TEXT, kind TEXT, rule TEXT, context TEXT,
    reason TEXT, inputs TEXT, expected TEXT, measured TEXT, status TEXT, error TEXT, started REAL, seconds REAL
);
CREATE INDEX IF NOT EXISTS decisions_by_rule ON decisions (rule, action);
CREATE INDEX IF NOT EXISTS decisions_by_node ON decisions (node, rule, started);
CREATE INDEX IF NOT EXISTS symptoms_by_cycle ON symptoms (cycle);
CREATE TABLE IF NOT EXISTS owed (decision TEXT PRIMARY KEY, undo TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS breakers (action TEXT PRIMARY KEY, failures INTEGER, open_until REAL);
"""
_COLUMNS = tuple(field.name for field in fields(Decision))
_TEXTS = ("id", "node", "action", "kind", "rule", "context", "reason", "expected", "measured", "error")
log = get_logger("parlmesh.mapek")


class Knowledge:
    """One file per loop; a write is on disk when the call returns. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._owner: TextIO | None = None
        self.under_way: set[str] = set()
        """Decisions that loops of this process are carrying out."""
        try:
            self._database = sqlite3.connect(path, timeout=10.0, check_same_thread=False)
        except SQLITE_ERRORS as error:
            raise self._unusable(error) from error
        try:
            self._prepare()
        except BaseException:
            # A refused file must not keep a lock that others wait for.
            self._database.close()
            raise

    def _prepare(self) -> None:
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            found = self._database.execute("PRAGMA user_version").fetchone()[0]
            if found > VERSION:
                raise FailedPrecondition(f"{self._path} has version {found}; this program reads up to {VERSION}")
            self._database.executescript(_SCHEMA + f"PRAGMA user_version = {VERSION};")
        except SQLITE_ERRORS as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> FailedPrecondition:
        return FailedPrecondition(f"{self._path} cannot be used as knowledge: {str(error)!a:.300}", reason="KNOWLEDGE")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        if self._owner is not None:
            self._owner.close()

    def next_cycle(self) -> int:
        """The next cycle number; it keeps growing across restarts."""
        return int(self._one("SELECT COALESCE(MAX(cycle), 0) + 1 FROM cycles")[0])

    def save(
        self,
        decisions: Iterable[Decision],
        *,
        owed: Mapping[str, Mapping[str, Any]] | None = None,
        settled: Iterable[str] = (),
    ) -> None:
        """Inserts or updates decisions in one transaction.

        `owed` holds rollbacks by decision id; they stay due, even across a restart, until the decision is `settled`.
        """
        rows = [_row(decision) for decision in decisions]
        marks = ", ".join("?" * len(_COLUMNS))
        with self._writing():
            self._database.executemany(f"INSERT OR REPLACE INTO decisions VALUES ({marks})", rows)  # noqa: S608
            self._database.executemany(
                "INSERT OR REPLACE INTO owed VALUES (?, ?)",
                [(name, json.dumps(dict(undo))) for name, undo in (owed or {}).items()],
            )
            self._database.executemany("DELETE FROM owed WHERE decision = ?", [(name,) for name in settled])

    def owed(self) -> list[tuple[Decision, dict[str, Any]]]:
        """Decisions whose rollback is still due because their loop died or their node did not answer."""
        rows = self._all("SELECT undo, decisions.* FROM owed JOIN decisions ON id = decision ORDER BY started")
        found = []
        for row in rows:
            decision, undo = self._read(row[1:]), _object(row[0])
            if decision is not None and undo is not None and decision.id not in self.under_way:
                found.append((decision, undo))
        return found

    def close_started(self) -> None:
        """Marks decisions that a dead loop had started, and that owe no rollback, as UNKNOWN."""
        told = "the loop ended before there was an answer"
        with self._writing():
            self._database.execute(
                "UPDATE decisions SET status = ?, error = ? WHERE status = ? AND id NOT IN (SELECT decision FROM owed)",
                (Status.UNKNOWN, told, Status.STARTED),
            )

    def own(self) -> None:
        """Locks the file for this process, so that no other process treats its running decisions as abandoned."""
        if self._owner is not None:
            return
        owner = open(f"{self._path}.lock", "a")  # noqa: SIM115  # held while the knowledge is open
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner.close()
            raise FailedPrecondition(
                f"another loop uses {self._path}; a loop needs its own knowledge file", reason="KNOWLEDGE"
            ) from None
        self._owner = owner
        self.close_started()

    def end_cycle(self, report: CycleReport, unknown_cycles: dict[str, int]) -> None:
        """Writes the cycle, its symptoms and the nodes' health."""
        now = report.started + report.seconds
        with self._writing():
            self._database.execute(
                "INSERT OR REPLACE INTO cycles VALUES (?, ?, ?, ?, ?, ?)",
                (
                    report.cycle,
                    report.started,
                    report.seconds,
                    len(report.nodes),
                    len(report.of(Health.SICK)),
                    len(report.of(Health.UNKNOWN)),
                ),
            )
            self._database.executemany(
                "INSERT INTO nodes VALUES (?, ?, ?, ?, ?) ON CONFLICT (node) DO UPDATE SET health = excluded.health,"
                " why = excluded.why, unknown_cycles = excluded.unknown_cycles, seen = MAX(seen, excluded.seen)",
                [
                    (
                        node.node,
                        0.0 if node.health is Health.UNKNOWN else now,
                        node.health,
                        node.why_unknown,
                        unknown_cycles.get(node.node, 0),
                    )
                    for node in report.nodes
                ],
            )
            self._database.executemany(
                "INSERT INTO symptoms VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        report.cycle,
                        report.started,
                        node.node,
                        each.name,
                        each.severity,
                        each.value,
                        each.limit,
                        each.why,
                    )
                    for node in report.nodes
                    for each in node.symptoms
                ],
            )

    def save_breakers(self, breakers: dict[str, Breaker]) -> None:
        """Writes the current state of the breakers."""
        rows = [(action, each.failures, each.open_until) for action, each in breakers.items()]
        with self._writing():
            self._database.executemany("INSERT OR REPLACE INTO breakers VALUES (?, ?, ?)", rows)

    def breakers(self, config: BreakerConfig, now: float) -> dict[str, Breaker]:
        """The saved breakers. An open one stays open across a restart, for at most open_seconds from now."""
        rows = self._all(
            "SELECT action, failures, open_until FROM breakers"
            " WHERE typeof(action) = 'text' AND typeof(failures) = 'integer' AND typeof(open_until) = 'real'"
        )
        latest = now + config.open_seconds
        return {action: Breaker(config, failures, min(until, latest)) for action, failures, until in rows}

    def nodes(self, since: float) -> dict[str, int]:
        """Nodes that have answered since that time, with their number of consecutive cycles without an answer."""
        return dict(
            self._all(
                "SELECT node, unknown_cycles FROM nodes WHERE seen >= ? AND typeof(seen) = 'real'"
                " AND typeof(node) = 'text' AND typeof(unknown_cycles) = 'integer'",
                (since,),
            )
        )

    def last_actions(self, now: float) -> dict[tuple[str, str], LastAction]:
        """The latest action by node and rule, with the consecutive failures up to it. Times are capped at `now`."""
        found: dict[tuple[str, str], LastAction] = {}
        marks = ", ".join("?" * len(_DONE))
        rows = self._all(
            f"SELECT node, rule, status, started + seconds FROM decisions WHERE status IN ({marks})"  # noqa: S608
            " AND started + seconds IS NOT NULL ORDER BY started",
            _DONE,
        )
        for node, rule, status, ended in rows:
            before = found.get((node, rule))
            good = status in (Status.WORKED, Status.DRY_RUN)
            found[node, rule] = LastAction(min(ended, now), 0 if good else (before.failures if before else 0) + 1)
        return found

    def candidates(self, rule: str, actions: Sequence[str], context: str, node: str = "") -> list[Candidate]:
        """Each action's record for a rule's symptoms; tries in other contexts count less."""
        failures = self._failures(rule, node)
        marks = ", ".join("?" * len(_ENDED))
        rows = self._all(
            "SELECT action, status = ?, context = ?, COUNT(*), COALESCE(AVG(seconds), 0.0) FROM decisions"  # noqa: S608
            f" WHERE rule = ? AND status IN ({marks}) GROUP BY 1, 2, 3",
            (Status.WORKED, context, rule, *_ENDED),
        )
        return [
            _candidate(action, [row[1:] for row in rows if row[0] == action], failures.get(action, 0))
            for action in actions
        ]

    def _failures(self, rule: str, node: str) -> dict[str, int]:
        """Failures on the node by action since an action last worked there for the rule."""
        marks = ", ".join("?" * len(_ENDED))
        rows = self._all(
            f"SELECT action, status FROM decisions WHERE node = ? AND rule = ? AND status IN ({marks})"  # noqa: S608
            " ORDER BY started DESC LIMIT 100",
            (node, rule, *_ENDED),
        )
        found: dict[str, int] = {}
        for action, status in rows:
            if status == Status.WORKED:
                break
            found[action] = found.get(action, 0) + 1
        return found

    def decision(self, decision_id: str) -> Decision:
        """The decision with this id or id prefix; raises NotFound when none or several match."""
        rows = self._all("SELECT * FROM decisions WHERE id LIKE ? ESCAPE '!' LIMIT 2", (_begins(decision_id),))
        if len(rows) != 1:
            what = "no decision begins" if not rows else "several decisions begin"
            raise NotFound(f"{what} with {decision_id!r}; `parlmesh mapek history` lists them")
        found = self._read(rows[0])
        if found is None:
            raise FailedPrecondition(f"decision {decision_id!r} of {self._path} cannot be read", reason="KNOWLEDGE")
        return found

    def decisions(self, limit: int, *, node: str = "", held: bool = True) -> list[Decision]:
        """Decisions, newest first."""
        rows = self._all(
            "SELECT * FROM decisions WHERE (? = '' OR node = ?) AND (? OR status != ?) ORDER BY started DESC LIMIT ?",
            (node, node, held, Status.HELD, limit),
        )
        return [found for row in rows if (found := self._read(row)) is not None]

    def health(self, limit: int) -> list[tuple[str, float, Health, str]]:
        """Each node's name, time last seen, health and reason; most recently seen first."""
        rows = self._all("SELECT node, seen, health, why FROM nodes ORDER BY seen DESC, node LIMIT ?", (limit,))
        known = {each.value for each in Health}
        return [
            (str(node), seen, Health(health), str(why))
            for node, seen, health, why in rows
            if health in known and isinstance(seen, float)
        ]

    def what_worked(self) -> list[dict[str, Any]]:
        """Tries, successes and mean seconds by rule and action."""
        marks = ", ".join("?" * len(_ENDED))
        rows = self._all(
            "SELECT rule, action, COUNT(*), SUM(status = ?), AVG(seconds) FROM decisions"  # noqa: S608
            f" WHERE status IN ({marks}) GROUP BY 1, 2 ORDER BY 1, 2",
            (Status.WORKED, *_ENDED),
        )
        return [dict(zip(("rule", "action", "tries", "worked", "seconds"), row, strict=True)) for row in rows]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._lock, self._database:
                yield
        except (*SQLITE_ERRORS, OverflowError) as error:
            raise FailedPrecondition(
                f"the knowledge cannot be written: {str(error)!a:.300}", reason="KNOWLEDGE"
            ) from error

    def _all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            with self._lock:
                return self._database.execute(statement, values).fetchall()
        except SQLITE_ERRORS as error:
            raise FailedPrecondition(f"{self._path} cannot be read: {str(error)!a:.300}", reason="KNOWLEDGE") from error

    def _read(self, row: tuple[Any, ...]) -> Decision | None:
        """None for a damaged row: it is skipped, and the loop continues."""
        try:
            return _decision(row)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            log.error("decision_damaged", path=str(self._path), decision=str(row[0])[:100], error=repr(error)[:300])
            return None

    def _one(self, statement: str) -> Any:
        return self._all(statement)[0]


def _candidate(action: str, rows: list[tuple[int, int, int, float]], failures: int) -> Candidate:
    tries = successes = seconds = 0.0
    for worked, here, count, mean in rows:
        weight = count if here else count * ELSEWHERE
        tries += weight
        successes += weight * worked
        seconds += weight * worked * mean
    return Candidate(action, tries, successes, seconds / successes if successes else 0.0, failures)


def _begins(text: str) -> str:
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_") + "%"


def _row(decision: Decision) -> tuple[Any, ...]:
    values = {name: getattr(decision, name) for name in _COLUMNS}
    values["symptom"] = json.dumps(asdict(decision.symptom))
    values["inputs"] = json.dumps(dict(decision.inputs))
    return tuple(values[name] for name in _COLUMNS)


def _object(text: object) -> dict[str, Any] | None:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _decision(row: tuple[Any, ...]) -> Decision:
    """Raises ValueError, TypeError, KeyError or OverflowError for a damaged row."""
    values = dict(zip(_COLUMNS, row, strict=True))
    symptom, inputs = _object(values["symptom"]), _object(values["inputs"])
    if symptom is None or inputs is None:
        raise ValueError("symptom and inputs must be objects")
    symptom["value"], symptom["limit"] = float(symptom["value"]), float(symptom["limit"])
    values["symptom"], values["inputs"] = Symptom(**symptom), inputs
    values["status"] = Status(values["status"])
    values["cycle"], values["started"] = int(values["cycle"]), float(values["started"])
    values["seconds"] = float(values["seconds"])
    for name in _TEXTS:
        values[name] = str(values[name])
    return Decision(**values)
