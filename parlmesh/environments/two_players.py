"""Who sits on the other side of a game. A world with two players offers `face`; the engine knows no more of games."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from parlmesh.types import Array, Search

NEWEST = 0
"""Instead of a version: whoever acts, in every step the policy that collects."""


class Player(Protocol):
    """What chooses moves: a policy, or a player that was written by hand."""

    def act(
        self, observation: Array, rng: np.random.Generator, mask: Array | None = None, state: Array | None = None
    ) -> Any:
        """Moves [N] first; the rest is the player's own affair."""

    def greedy(self, observation: Array, mask: Array | None = None, state: Array | None = None) -> Any:
        """The likeliest moves [N] first."""


@dataclass(frozen=True, slots=True)
class Opponent:
    """A version that new games may meet, and its share of them."""

    version: int
    player: Player
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Finished:
    """A game that is over, as the learning side sees it."""

    opponent: int
    """The version that sat on the other side; NEWEST for the acting one and for players written by hand."""
    result: int
    """1 won, 0 drawn, −1 lost."""
    end: str
    """rules, finisher (a win that was not chosen), draw, resignation or limit."""
    plies: int
    seat: int
    """0 when the learning side began."""
    opening: int = 0
    """Plies that were drawn at random before the first choice."""


@runtime_checkable
class Opposed(Protocol):
    """A vector of games, each with one learning side."""

    def face(self, opponents: Sequence[Opponent]) -> None:
        """Whom new games meet from here on. A game that runs keeps its opponent; who meets NEWEST meets the new one."""

    def rest(self, resting: Array) -> None:
        """Columns [E] that are not stepped any more until all are reset."""

    def finished(self) -> list[Finished]:
        """Games that ended since it was asked last."""


@runtime_checkable
class Searched(Protocol):
    """Games that can be looked ahead in."""

    def searching(self, policy: Any, search: Search) -> Any:
        """A policy that acts by search with the values of this one; who sits opposite searches too."""
