"""Who sits on the other side of every game, and how it chooses."""

from collections.abc import Sequence

import numpy as np

from parlmesh.environments.two_players import NEWEST, Opponent, Player
from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .games import Games
from .scripted_players import player_of
from .search import Searcher, judge_of

RESIGNS = -1
"""Instead of a move: the player gives the game up."""
# The player written by hand, which has no version.
_SCRIPTED = -1


class Seats:
    """The other sides of `count` games. A game keeps the version it began with; whoever meets the newest policy meets
    it in every move. Versions that no game needs any more are let go."""

    def __init__(self, count: int, scripted: str, *, greedy: bool, most: int) -> None:
        self._scripted = player_of(scripted)
        self._greedy = greedy
        self._most = most
        self._held: dict[int, Player] = {}
        self._offered: dict[int, float] = {_SCRIPTED: 1.0}
        self._key = np.full(count, _SCRIPTED, np.int64)
        # By which versions look ahead; without it they move as their policies say.
        self.searcher: Searcher | None = None

    @property
    def held(self) -> int:
        """Versions that are held now."""
        return len(self._held)

    def offer(self, opponents: Sequence[Opponent]) -> None:
        """What new games may meet. Beyond the limit, versions wait until others are let go."""
        if not opponents or any(opponent.share < 0.0 for opponent in opponents):
            raise InvalidInput("opponents must be some, with shares of at least 0", reason="OPPONENT")
        in_use = set(self._key.tolist())
        self._held = {key: player for key, player in self._held.items() if key in in_use}
        self._offered = {}
        for opponent in sorted(opponents, key=lambda each: each.version != NEWEST):
            if opponent.version in self._held or len(self._held) < self._most or opponent.version == NEWEST:
                self._held[opponent.version] = opponent.player
                self._offered[opponent.version] = self._offered.get(opponent.version, 0.0) + opponent.share
        if not sum(self._offered.values()):
            # All that was offered waits for room: those who are here play on.
            held = [key for key in self._held if key in in_use] or list(self._held)
            self._offered = dict.fromkeys(held, 1.0)

    def seat(self, which: Array, rng: np.random.Generator) -> None:
        """Draws the opponents of games that begin."""
        keys, shares = np.array(list(self._offered)), np.array(list(self._offered.values()))
        self._key[which] = rng.choice(keys, size=len(which), p=shares / shares.sum())

    def version(self, game: int) -> int:
        """The version a game is played against; NEWEST for the acting policy and for a player written by hand."""
        return max(int(self._key[game]), NEWEST)

    def choose(self, games: Games, which: Array, rng: np.random.Generator) -> Array:
        """Moves [N] of the other sides, which are to move; RESIGNS gives up."""
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
