"""What was done on a node and may have to be taken back: written down before it is done.

A deed is begun, then done, then stands once its loop has confirmed it. One that is not confirmed in time is taken back
by the node itself: its loop has died, or the deed has cut the way to it. One that was begun and never done belongs to
an actor that died meanwhile, and is taken back too.
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
"""Beyond an action's time limit, before it is taken for broken off."""
MOST_TRIES = 6
"""To take a deed back; then it is left as it is, and said so."""
_KEPT = 1000


class DeedState(StrEnum):
    """How far a deed is."""

    BEGUN = "begun"
    DONE = "done"
    """Done and not confirmed."""
    STANDS = "stands"
    UNDOING = "undoing"
    UNDONE = "undone"
    LEFT = "left"
    """It could not be taken back."""


@dataclass(frozen=True, slots=True)
class Deed:
    """One action of one decision."""

    decision: str
    kind: str
    parameters: Mapping[str, Any]
    undo: Mapping[str, Any] | None
    """What taking it back needs; None = it cannot be."""
    state: DeedState
    timeout_seconds: float
    tries: int
    """To take it back."""
    detail: str


class Deeds:
    """Of one node, in the file of its state. Every change is one transaction."""

    def __init__(self, state: NodeState) -> None:
        self._state = state

    def find(self, decision: str) -> Deed | None:
        """By the decision that asked for it."""
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
        """Before anything is touched."""
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
            # Only what needs nothing any more is forgotten.
            database.execute(
                "DELETE FROM deeds WHERE number <= (SELECT MAX(number) FROM deeds) - ? AND state IN (?, ?, ?)",
                (_KEPT, DeedState.STANDS, DeedState.UNDONE, DeedState.LEFT),
            )

    def done(self, decision: str, undo: Mapping[str, Any] | None, confirm_seconds: float) -> bool:
        """It was done; whether it waits to be confirmed."""
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
        """It stands from now on, unless it is being taken back already; None = there is no such deed."""
        with self._state.transaction() as database:
            database.execute(
                "UPDATE deeds SET state = ? WHERE decision = ? AND state = ?",
                (DeedState.STANDS, decision, DeedState.DONE),
            )
            row = database.execute("SELECT state FROM deeds WHERE decision = ?", (decision,)).fetchone()
        return DeedState(row[0]) if row and row[0] in set(DeedState) else None

    def take(self, decision: str) -> Deed | None:
        """To take it back now, whoever asks first; None where there is nothing to take back.

        What a later deed on the same target stands on stays: taking it back would undo the later one too.
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
        """All that were broken off or not confirmed in time, or were begun before the machine was started."""
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
        """How taking it back ended; one that is still UNDOING is tried again later."""
        with self._state.transaction() as database:
            database.execute(
                "UPDATE deeds SET state = ?, detail = ? WHERE decision = ?", (state, detail[:500], decision)
            )

    def next_seconds(self) -> float | None:
        """Until the next one is overdue; None when none waits."""
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
            # Nobody can say what it was; the others are taken back all the same.
            told = (DeedState.LEFT, "what was written of it cannot be read", decision)
            database.execute("UPDATE deeds SET state = ?, detail = ? WHERE decision = ?", told)
            return None
        # Should whoever takes it back die too, it is overdue again; each time it waits twice as long.
        until = self._state.now() + (deed.timeout_seconds + GRACE_SECONDS) * 2 ** min(deed.tries, MOST_TRIES)
        database.execute(
            "UPDATE deeds SET state = ?, until = ?, boot = ?, tries = tries + 1 WHERE decision = ?",
            (DeedState.UNDOING, until, boot_id(), decision),
        )
        return deed


_COLUMNS = "decision, kind, parameters, undo, state, timeout, tries, detail"


def _deed(row: tuple[Any, ...]) -> Deed | None:
    """None when it cannot be read."""
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
