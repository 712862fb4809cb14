"""Gumbel AlphaZero (Danihelka et al. 2022, "Policy improvement by planning with Gumbel") over many games at once.

A root samples the moves to consider without replacement from the network's policy, sequential halving finds the best of
them, and the resulting policy is better than the network's for any number of simulations. Values lie between −1 and 1
and are not rescaled by a tree's range, so that noise between equal moves is not amplified.
"""

from dataclasses import dataclass

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array, Search

from ..games import Games
from .search_trees import Judge, Trees, softmax
from .sequential_halving import schedules

MOST_NODES = 1_000_000
"""Most positions in all trees of one search; each takes some kilobytes."""


@dataclass(frozen=True, slots=True)
class Found:
    """A search's result for B games: the chosen move [B], the legal moves [B, K] and their probabilities [B, K] under
    the improved policy (padded with −1 and 0), the value [B] for the side to move under it, and the log-probability [B]
    of the move."""

    move: Array
    moves: Array
    chances: Array
    value: Array
    log_prob: Array


class Searcher:
    """Reuses storage for its trees between searches. Not thread-safe."""

    def __init__(self, settings: Search) -> None:
        self.settings = settings
        self._room: Games | None = None
        self._games: Games | None = None

    def find(self, games: Games, which: Array, judge: Judge, rng: np.random.Generator | None) -> Found:
        """Searches games that are not over. Without `rng` it is deterministic and chooses the best move."""
        settings = self.settings
        nodes = settings.simulations + 1
        if len(which) * nodes > MOST_NODES:
            message = f"{len(which)} games x {nodes} positions of a search must be at most {MOST_NODES}"
            raise InvalidInput(f"{message}; use fewer simulations or num_envs", reason="SEARCH")
        room = self._room_for(games, len(which) * nodes)
        trees = Trees(games, which, room, nodes, judge, settings.value_scale)
        every, root = np.arange(len(which)), np.zeros(len(which), np.int64)
        # Positions further down may have more legal moves than the roots.
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
