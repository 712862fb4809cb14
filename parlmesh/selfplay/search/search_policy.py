"""A policy with search, for the collector and evaluations."""

from collections.abc import Callable

import numpy as np

from parlmesh.environments.two_players import Player
from parlmesh.errors import InvalidInput
from parlmesh.policies import Choice, Policy
from parlmesh.types import Array, Search, target_width

from ..games import Games
from .gumbel_search import Found, Searcher
from .search_trees import Judge


def judge_of(player: Player) -> Judge:
    """A player's evaluation of positions; raises InvalidInput for one without values."""
    judged = getattr(player, "judged", None)
    if judged is None:
        message = "search needs a policy that also evaluates positions; its network must be a plug-in's, such as board"
        raise InvalidInput(message, reason="SEARCH")
    found: Judge = judged
    return found


def chooser_of(player: Player, simulations: int) -> Callable[[Games], int]:
    """How a player chooses a move in a single game: the most likely, or with simulations the best found by search."""
    one = np.array([0])
    if not simulations:
        return lambda games: int(player.greedy(games.planes(one), games.legal(one))[0][0])
    judge, searcher = judge_of(player), Searcher(Search(simulations))
    return lambda games: int(searcher.find(games, one, judge, None).move[0])


class Looking:
    """Searches the games themselves, not their observations. `live` returns the columns that are to move."""

    def __init__(self, policy: Policy, searcher: Searcher, games: Games, live: Callable[[], Array]) -> None:
        self._judge = judge_of(policy)
        self._policy, self._searcher, self._games, self._live = policy, searcher, games, live
        self.target: tuple[Array, Array] = (np.empty((0, 0), np.int32), np.empty((0, 0), np.float32))

    def initial_state(self, num_envs: int) -> Array | None:
        """The policy's initial state."""
        return self._policy.initial_state(num_envs)

    def act(
        self, observation: Array, rng: np.random.Generator, mask: Array | None = None, state: Array | None = None
    ) -> Choice:
        """A sampled move; the improved policy becomes the target."""
        return self._choice(len(observation), rng)

    def greedy(self, observation: Array, mask: Array | None = None, state: Array | None = None) -> Choice:
        """The best move found."""
        return self._choice(len(observation), None)

    def to_environment(self, action: Array) -> Array:
        """Moves need no conversion."""
        return action

    def _choice(self, count: int, rng: np.random.Generator | None) -> Choice:
        live, width = self._live(), target_width(self._games.choices)
        action, log_prob = np.zeros(count, np.int64), np.zeros(count, np.float32)
        # Nothing is learned from an ended game, so any move will do.
        moves, chances = np.zeros((count, width), np.int32), np.zeros((count, width), np.float32)
        chances[:, 0] = 1.0
        if len(live):
            found = self._searcher.find(self._games, live, self._judge, rng)
            action[live], log_prob[live] = found.move, found.log_prob
            moves[live], chances[live] = likeliest(found, width)
        self.target = moves, chances
        return Choice(action, log_prob)


def likeliest(found: Found, width: int) -> tuple[Array, Array]:
    """The `width` most likely moves [B, width] and their probabilities, rescaled to sum to 1."""
    order = np.argsort(-found.chances, axis=1, kind="stable")[:, :width]
    chances = np.take_along_axis(found.chances, order, axis=1)
    moves = np.where(chances > 0.0, np.take_along_axis(found.moves, order, axis=1), 0)
    short = ((0, 0), (0, width - order.shape[1]))
    return np.pad(moves, short), np.pad(chances / chances.sum(axis=1, keepdims=True), short)
