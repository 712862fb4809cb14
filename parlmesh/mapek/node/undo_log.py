"""Actions taken on a node that may have to be undone. Each is recorded before it is taken.

A deed is one such action. It is started, then done, and final once its loop has confirmed it. The node itself undoes a
deed that is not confirmed in time: its loop has died, or the deed has cut the connection to it. It also undoes a deed
that was begun but never done, because its actor died meanwhile.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType
from typing import Any

from .node_memory import NodeState, boot_id

GRACE_SECONDS = 1.0
"""Time beyond an action's time limit before it counts as interrupted."""
MOST_TRIES = 6
"""Most tries to undo a deed; after that it is left unchanged, and reported."""
_KEPT = 1000


class DeedState(StrEnum):
    """The progress of a deed."""

    BEGUN = "begun"
    DONE = "done"
    """Done but not confirmed."""
    STANDS = "stands"
    UNDOING = "undoing"
    UNDONE = "undone"
    LEFT = "left"
    """It could not be undone."""


@dataclass(frozen=True, slots=True)
class Deed:
    """One action of one decision."""

    decision: str
    kind: str
    parameters: Mapping[str, Any]
    undo: Mapping[str, Any] | None
    """The data needed to undo it; None = it cannot be undone."""
    state: DeedState
    timeout_seconds: float
    tries: int
    """Tries so far to undo it."""
    detail: str


class Deeds:
    """The deeds of one node, in its state file. Every change is one transaction."""

    def __init__(self, state: NodeState) -> None:
        self._state = state

    def find(self, decision: str) -> Deed | None:
        """The deed of that decision."""
        with self._state.transaction() as database:
            row = database.execute(f"SELECT {_COLUMNS} FROM deeds WHERE decision = ?", (decision,)).fetchone()  # noqa: S608
        return _deed(row) if row else None

    def begin(
        self,
        decision: str,
        kind: str,
        target: str,
        parameters: Mapping[str, Any],
        undo: Mapping[str, Any] | None,
        timeout_seconds: float,
    ) -> None:
        """Records a deed before anything is touched."""
        until = self._state.now() + timeout_seconds + GRACE_SECONDS
        with self._state.transaction(durable=True) as database:
            database.execute(
                "INSERT INTO deeds"
                " (decision, kind, target, parameters, undo, state, until, boot, timeout, tries, detail)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, '')",
                (
                    decision,
                    kind,
                    target,
                    json.dumps(dict(parameters)),
                    None if undo is None else json.dumps(dict(undo)),
                    DeedState.BEGUN,
                    until,
                    boot_id(),
                    timeout_seconds,
                ),
            )
            # Forget only old deeds that need no further work.
            database.execute(
                "DELETE FROM deeds WHERE number <= (SELECT MAX(number) FROM deeds) - ? AND state IN (?, ?, ?)",
                (_KEPT, DeedState.STANDS, DeedState.UNDONE, DeedState.LEFT),
            )

    def done(self, decision: str, undo: Mapping[str, Any] | None, confirm_seconds: float) -> bool:
        """Records that it was done; True = it waits for confirmation."""
        waits = undo is not None and confirm_seconds > 0
        with self._state.transaction() as database:
            database.execute(
                "UPDATE deeds SET state = ?, undo = ?, until = ? WHERE decision = ? AND state = ?",
                (
                    DeedState.DONE if waits else DeedState.STANDS,
                    None if undo is None else json.dumps(dict(undo)),
                    self._state.now() + confirm_seconds,
                    decision,
                    DeedState.BEGUN,
                ),
            )
        return waits

    def confirm(self, decision: str) -> DeedState | None:
        """Keeps the deed unless it is already being undone; returns its state, or None for an unknown deed."""
        with self._state.transaction() as database:
            database.execute(
                "UPDATE deeds SET state = ? WHERE decision = ? AND state = ?",
                (DeedState.STANDS, decision, DeedState.DONE),
            )
            row = database.execute("SELECT state FROM deeds WHERE decision = ?", (decision,)).fetchone()
        return DeedState(row[0]) if row and row[0] in set(DeedState) else None

    def take(self, decision: str) -> Deed | None:
        """Claims the deed to undo it now; only the first caller gets it, and None means there is nothing to undo.

        A deed followed by a later one on the same target is kept: undoing it would undo the later one too.
        """
        there = (DeedState.BEGUN, DeedState.DONE, DeedState.STANDS)
        with self._state.transaction() as database:
            later = database.execute(
                "SELECT 1 FROM deeds, (SELECT number, kind, target FROM deeds WHERE decision = ?) AS own"
                " WHERE deeds.number > own.number AND deeds.kind = own.kind AND deeds.target = own.target"
                " AND state IN (?, ?, ?, ?)",
                (decision, *there, DeedState.UNDOING),
            ).fetchone()
            return None if later else self._taken(database, decision, there)

    def take_overdue(self) -> list[Deed]:
        """Claims all deeds that were interrupted, not confirmed in time or started before the last boot."""
        now, boot = self._state.now(), boot_id()
        waiting = (DeedState.BEGUN, DeedState.DONE, DeedState.UNDOING)
        with self._state.transaction() as database:
            rows = database.execute(
                "SELECT decision FROM deeds WHERE state IN (?, ?, ?) AND (until <= ? OR boot != ?)"
                " ORDER BY number DESC",
                (*waiting, now, boot),
            ).fetchall()
            found = [self._taken(database, row[0], waiting) for row in rows]
        return [deed for deed in found if deed is not None]

    def ended(self, decision: str, state: DeedState, detail: str) -> None:
        """Records how undoing it ended; a deed that stays UNDOING is tried again later."""
        with self._state.transaction() as database:
            database.execute(
                "UPDATE deeds SET state = ?, detail = ? WHERE decision = ?", (state, detail[:500], decision)
            )

    def next_seconds(self) -> float | None:
        """Seconds until the next deed is overdue; None when none is waiting."""
        with self._state.transaction() as database:
            row = database.execute(
                "SELECT MIN(until) FROM deeds WHERE state IN (?, ?, ?)",
                (DeedState.BEGUN, DeedState.DONE, DeedState.UNDOING),
            ).fetchone()
        return max(row[0] - self._state.now(), 0.0) if isinstance(row[0], float) else None

    def _taken(self, database: Any, decision: str, states: tuple[DeedState, ...]) -> Deed | None:
        marks = ", ".join("?" * len(states))
        row = database.execute(
            f"SELECT {_COLUMNS} FROM deeds WHERE decision = ? AND state IN ({marks})",  # noqa: S608
            (decision, *states),
        ).fetchone()
        if row is None:
            return None
        deed = _deed(row)
        if deed is None:
            # The record is unreadable, so this deed cannot be undone; the others still are.
            told = (DeedState.LEFT, "its record cannot be read", decision)
            database.execute("UPDATE deeds SET state = ?, detail = ? WHERE decision = ?", told)
            return None
        # If this actor dies too, the deed becomes overdue again; the wait doubles each time.
        until = self._state.now() + (deed.timeout_seconds + GRACE_SECONDS) * 2 ** min(deed.tries, MOST_TRIES)
        database.execute(
            "UPDATE deeds SET state = ?, until = ?, boot = ?, tries = tries + 1 WHERE decision = ?",
            (DeedState.UNDOING, until, boot_id(), decision),
        )
        return deed


_COLUMNS = "decision, kind, parameters, undo, state, timeout, tries, detail"


def _deed(row: tuple[Any, ...]) -> Deed | None:
    """None when the row is damaged."""
    decision, kind, parameters, undo, state, timeout_seconds, tries, detail = row
    try:
        asked, before = json.loads(parameters), json.loads(undo) if undo is not None else None
        if not isinstance(asked, dict) or not isinstance(before, (dict, NoneType)) or not 0 <= tries < 1 << 31:
            return None
        if not math.isfinite(timeout_seconds):
            return None
        return Deed(str(decision), str(kind), asked, before, DeedState(state), timeout_seconds, tries, str(detail))
    except (ValueError, TypeError, RecursionError):
        return None
