"""The opponent in every game, and how it chooses moves."""

from collections.abc import Sequence

import numpy as np

from parlmesh.environments.two_players import NEWEST, Opponent, Player
from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .games import Games
from .scripted_players import player_of
from .search import Searcher, judge_of

RESIGNS = -1
"""Stands for a move: the player resigns."""
# The scripted player, which has no version.
_SCRIPTED = -1


class Seats:
    """The opponents of `count` games. A game keeps its version to the end, except that the newest policy is always the
    current one. Versions that no game needs are released."""

    def __init__(self, count: int, scripted: str, *, greedy: bool, most: int) -> None:
        self._scripted = player_of(scripted)
        self._greedy = greedy
        self._most = most
        self._held: dict[int, Player] = {}
        self._offered: dict[int, float] = {_SCRIPTED: 1.0}
        self._key = np.full(count, _SCRIPTED, np.int64)
        # The search that versions use; without it they play their policy's moves.
        self.searcher: Searcher | None = None

    @property
    def held(self) -> int:
        """Number of versions held."""
        return len(self._held)

    def offer(self, opponents: Sequence[Opponent]) -> None:
        """Sets the opponents of new games. Beyond the limit, versions wait until others are released."""
        if not opponents or any(opponent.share < 0.0 for opponent in opponents):
            raise InvalidInput("opponents must not be empty, and their shares must be >= 0", reason="OPPONENT")
        in_use = set(self._key.tolist())
        self._held = {key: player for key, player in self._held.items() if key in in_use}
        self._offered = {}
        for opponent in sorted(opponents, key=lambda each: each.version != NEWEST):
            if opponent.version in self._held or len(self._held) < self._most or opponent.version == NEWEST:
                self._held[opponent.version] = opponent.player
                self._offered[opponent.version] = self._offered.get(opponent.version, 0.0) + opponent.share
        if not sum(self._offered.values()):
            # All offered versions wait for room: continue with those held.
            held = [key for key in self._held if key in in_use] or list(self._held)
            self._offered = dict.fromkeys(held, 1.0)

    def seat(self, which: Array, rng: np.random.Generator) -> None:
        """Draws the opponents of new games."""
        keys, shares = np.array(list(self._offered)), np.array(list(self._offered.values()))
        self._key[which] = rng.choice(keys, size=len(which), p=shares / shares.sum())

    def version(self, game: int) -> int:
        """The opponent's version; NEWEST for the acting policy and for a scripted player."""
        return max(int(self._key[game]), NEWEST)

    def choose(self, games: Games, which: Array, rng: np.random.Generator) -> Array:
        """Moves [N] of the other sides, which are to move; may contain RESIGNS."""
        legal = games.legal(which)
        moves = np.zeros(len(which), np.int64)
        keys = self._key[which]
        observation: Array | None = None
        for key in np.unique(keys).tolist():
            rows = np.flatnonzero(keys == key)
            if key == _SCRIPTED:
                moves[rows] = self._scripted(games, which[rows], legal[rows], rng)
                continue
            player = self._held[key]
            if self.searcher is not None:
                moves[rows] = self.searcher.find(
                    games, which[rows], judge_of(player), None if self._greedy else rng
                ).move
                continue
            if observation is None:
                observation = games.planes(which)
            whole = len(rows) == len(which)
            seen, mask = (observation, legal) if whole else (observation[rows], legal[rows])
            moves[rows] = (player.greedy(seen, mask) if self._greedy else player.act(seen, rng, mask))[0]
        return moves
