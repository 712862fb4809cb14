"""Gumbel AlphaZero (Danihelka et al. 2022, "Policy improvement by planning with Gumbel") over many games at once.

A root draws the moves that it considers without replacement by the network's chances, sequential halving finds the best
of them, and the policy that results is better than the network's whatever the number of simulations. Values are between
−1 and 1 and are not rescaled by what a tree has seen, so that noise between equal moves stays noise.
"""

from dataclasses import dataclass

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array, Search

from ..games import Games
from .search_trees import Judge, Trees, softmax
from .sequential_halving import schedules

MOST_NODES = 1_000_000
"""Positions that the trees of one search have together; each takes some kilobytes."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search says of B games: the move to make [B], the legal moves [B, K] with their chances [B, K] under the
    improved policy (−1 and 0 where there are fewer), what the game is worth [B] to the side to move under it, and the
    log-probability [B] of the move."""

    move: Array
    moves: Array
    chances: Array
    value: Array
    log_prob: Array


class Searcher:
    """Keeps room for its trees from search to search. Not thread-safe."""

    def __init__(self, settings: Search) -> None:
        self.settings = settings
        self._room: Games | None = None
        self._games: Games | None = None

    def find(self, games: Games, which: Array, judge: Judge, rng: np.random.Generator | None) -> Found:
        """Searches games that are not over. Without `rng` nothing is drawn, and the best move is the one."""
        settings = self.settings
        nodes = settings.simulations + 1
        if len(which) * nodes > MOST_NODES:
            message = f"{len(which)} games x {nodes} positions of a search must be at most {MOST_NODES}"
            raise InvalidInput(f"{message}; take fewer simulations or num_envs", reason="SEARCH")
        room = self._room_for(games, len(which) * nodes)
        trees = Trees(games, which, room, nodes, judge, settings.value_scale)
        every, root = np.arange(len(which)), np.zeros(len(which), np.int64)
        # Positions further down may have more legal moves; those of the roots come first.
        width = trees.moves.shape[2]
        there = trees.moves[:, 0] >= 0
        noise = np.zeros(there.shape) if rng is None else rng.gumbel(size=there.shape)
        considered = np.minimum(there.sum(axis=1), settings.considered)
        turns = schedules(settings.considered, settings.simulations)
        for simulation in range(settings.simulations):
            trees.simulate(simulation + 1, self._turn(trees, noise, turns[considered, simulation]))
        improved = trees.improved(every, root)[:, :width]
        visits, moves = trees.visits[:, 0, :width], trees.moves[:, 0, :width]
        chosen = np.where(visits == visits.max(axis=1, keepdims=True), noise + improved, -np.inf).argmax(axis=1)
        chances = np.where(there, softmax(improved), 0.0).astype(np.float32)
        log_prob = np.log(np.maximum(chances[every, chosen], 1e-30)).astype(np.float32)
        value = (chances * trees.worth(every, root)[:, :width]).sum(axis=1)
        return Found(moves[every, chosen].astype(np.int64), moves, chances, value, log_prob)

    def _turn(self, trees: Trees, noise: Array, turn: Array) -> Array:
        every, width = np.arange(trees.count), noise.shape[1]
        scores = noise + trees.improved(every, np.zeros_like(every))[:, :width]
        found: Array = np.where(trees.visits[:, 0, :width] == turn[:, None], scores, -np.inf).argmax(axis=1)
        return found

    def _room_for(self, games: Games, count: int) -> Games:
        if self._room is None or self._room.count < count or games is not self._games:
            self._room, self._games = games.room(count), games
        return self._room
