"""The USI protocol, so that any shogi program can play against a policy: lines in, lines out."""

from collections.abc import Iterable, Iterator

import numpy as np
from rsshogi.core import Move

from parlmesh.environments.two_players import Player
from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from ..search import chooser_of
from .games import START, Shogi
from .impasse import declared
from .move_numbers import Form

_ONE: Array = np.array([0])
_MOST_SIMULATIONS = 10_000


class UsiEngine:
    """Plays a policy's most likely move, or with `Simulations` the best found by search; with `Finisher`, a mate in one
    comes first."""

    def __init__(self, player: Player, *, form: Form, name: str, simulations: int = 0) -> None:
        self._player, self._simulations = player, simulations
        self._choose = chooser_of(player, simulations)
        self._form: Form = form
        self._name = name
        self._finisher = True
        self._games = Shogi(1, form=form, max_plies=10_000, impasse="27")

    def answers(self, lines: Iterable[str]) -> Iterator[str]:
        """The answers to each line, until `quit`."""
        for line in lines:
            word, _, rest = line.strip().partition(" ")
            if word == "quit":
                return
            if word == "usi":
                yield f"id name {self._name}"
                yield "id author parlmesh"
                yield "option name Finisher type check default true"
                yield f"option name Simulations type spin default {self._simulations} min 0 max {_MOST_SIMULATIONS}"
                yield "usiok"
            elif word == "isready":
                yield "readyok"
            elif word == "setoption" and rest.startswith("name Finisher value "):
                self._finisher = rest.endswith("true")
            elif word == "setoption" and rest.startswith("name Simulations value "):
                yield from self._search(rest.rpartition(" ")[2])
            elif word == "position":
                try:
                    self._games = position(rest, self._form)
                except ValueError as error:
                    yield f"info string {error}"
            elif word == "go":
                yield f"bestmove {self.best()}"

    def best(self) -> str:
        """The best move, `win` if a win can be declared, or `resign` without a legal move."""
        games = self._games
        legal = games.legal(_ONE)
        if not legal.any():
            return "resign"
        colours = games.colours(_ONE)
        if not games.boards[0].is_in_check() and declared("27", *games.arrays(_ONE), colours)[0][0]:
            return "win"
        winning = games.winning(_ONE) if self._finisher else np.zeros_like(legal)
        number = int(winning[0].argmax()) if winning.any() else self._choose(games)
        return games.usi(0, number)

    def _search(self, text: str) -> Iterator[str]:
        """Sets the number of simulations; an invalid number changes nothing."""
        if not text.isdecimal() or int(text) > _MOST_SIMULATIONS:
            yield f"info string Simulations must lie in 0..{_MOST_SIMULATIONS}, got {text[:20]!r}"
            return
        try:
            self._choose = chooser_of(self._player, int(text))
        except InvalidInput as error:
            yield f"info string {error.message}"


def position(text: str, form: Form) -> Shogi:
    """The game described by `position`: [startpos | sfen …] [moves …]; raises ValueError if invalid."""
    where, _, moves = text.partition("moves")
    where = where.strip()
    if where != "startpos" and not where.startswith("sfen "):
        raise ValueError(f"position must be startpos or sfen, got {where[:40]!r}")
    games = Shogi(1, form=form, max_plies=10_000, impasse="none", sfen=where[5:] if where != "startpos" else START)
    for usi in moves.split():
        number = games.number(0, Move.from_usi(usi))
        if number < 0 or not games.legal(_ONE)[0, number]:
            raise ValueError(f"{usi} is not legal after {games.plies(_ONE)[0]} moves")
        games.play(_ONE, np.array([number]))
    return games
