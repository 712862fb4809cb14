"""Boards and moves as readable text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .games import Games
from .registration import GAMES

ONE: Array = np.array([0])
_HAND = "PLNSGBR"


@dataclass(frozen=True, slots=True)
class Notation:
    """How a game is shown; `read` returns a move's number or −1, `write` its name."""

    show: Callable[[Any], str]
    read: Callable[[Any, str], int]
    write: Callable[[Any, int], str]
    help: str


def _stones(games: Games) -> str:
    """The side that moved first has x."""
    own, other = games.planes(ONE)[0]
    first, second = (own, other) if games.plies(ONE)[0] % 2 == 0 else (other, own)
    cells = np.where(first, "x", np.where(second, "o", "."))
    return "\n".join("|" + " ".join(row) + "|" for row in cells.tolist())


def _connect_four(games: Games) -> str:
    return _stones(games) + "\n 1 2 3 4 5 6 7"


def _number(games: Games, text: str) -> int:
    return int(text) - 1 if text.isdigit() and 1 <= int(text) <= games.choices else -1


def _shogi(games: Any) -> str:
    """White's pieces are marked with v, promoted ones with +."""
    cells, hands = games.arrays(ONE)
    lines = [f"white holds {_held(hands[0, 1])}", "  9  8  7  6  5  4  3  2  1"]
    for row, rank in enumerate("abcdefghi"):
        lines.append("".join(_piece(int(cell)) for cell in cells[0, 9 * row : 9 * row + 9]) + f"  {rank}")
    return "\n".join([*lines, f"black holds {_held(hands[0, 0])}"])


def _piece(cell: int) -> str:
    kind = cell % 16
    if not kind:
        return "  ."
    name = " PLNSBRGK"[kind] if kind <= 8 else "PLNSBR"[kind - 9]
    return (("v" if cell >= 16 else "") + ("+" if kind > 8 else "") + name).rjust(3)


def _held(counts: Array) -> str:
    found = [f"{name}{count if count > 1 else ''}" for name, count in zip(_HAND, counts.tolist(), strict=True) if count]
    return " ".join(found) or "nothing"


def _usi_number(games: Any, text: str) -> int:
    for number in np.flatnonzero(games.legal(ONE)[0]).tolist():
        if games.usi(0, number) == text:
            return int(number)
    return -1


NOTATIONS: Mapping[str, Notation] = {
    "connect_four": Notation(_connect_four, _number, lambda games, move: str(move + 1), "a column, 1 to 7"),
    "tictactoe": Notation(_stones, _number, lambda games, move: str(move + 1), "a square, 1 to 9 row by row"),
    "shogi": Notation(_shogi, _usi_number, lambda games, move: str(games.usi(0, move)), "USI: 7g7f, 8h2b+, P*5e"),
}


def notation_of(name: str) -> Notation:
    """The notation of a game; InvalidInput lists the known games."""
    if name not in NOTATIONS or name not in GAMES:
        raise InvalidInput(f"game must be one of {', '.join(NOTATIONS)}, got {name!r}", reason="GAME")
    return NOTATIONS[name]
