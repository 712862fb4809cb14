"""Opponents in two-player games. A world with two players offers `face`; the engine knows nothing else about games."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from parlmesh.types import Array, Search

NEWEST = 0
"""Stands for a version: the acting policy itself, always the one that collects."""


class Player(Protocol):
    """Chooses moves: a policy, or a hand-written player."""

    def act(
        self, observation: Array, rng: np.random.Generator, mask: Array | None = None, state: Array | None = None
    ) -> Any:
        """Returns moves [N] first; the rest is up to the player."""

    def greedy(self, observation: Array, mask: Array | None = None, state: Array | None = None) -> Any:
        """Returns the likeliest moves [N] first."""


@dataclass(frozen=True, slots=True)
class Opponent:
    """A version that new games may be played against, and its share of them."""

    version: int
    player: Player
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished game, as the learning side sees it."""

    opponent: int
    """Version of the opponent; NEWEST for the acting policy and for hand-written players."""
    result: int
    """1 won, 0 drawn, −1 lost."""
    end: str
    """How it ended: rules, finisher (a win that was not chosen), draw, resignation or limit."""
    plies: int
    seat: int
    """0 if the learning side moved first."""
    opening: int = 0
    """Random plies before the first choice."""


@runtime_checkable
class Opposed(Protocol):
    """A vector of games, each with one learning side."""

    def face(self, opponents: Sequence[Opponent]) -> None:
        """Sets the opponents of new games. Running games keep theirs, but NEWEST always means the current policy."""

    def rest(self, resting: Array) -> None:
        """Stops stepping these columns [E] until all are reset."""

    def finished(self) -> list[Finished]:
        """Games that ended since the last call."""


@runtime_checkable
class Searched(Protocol):
    """Games that support search."""

    def searching(self, policy: Any, search: Search) -> Any:
        """A policy that searches with the values of this one; its opponents search too."""
