"""Search trees of many games side by side, as arrays: axis 0 is the game, axis 1 the node, axis 2 the legal move.

A node's value is for the side to move there, so a move's value for the side that makes it is the negative of its child
node's value. This is the only place where the sign changes.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from parlmesh.types import Array

from ..games import WORTH, Games, Verdict

Judge: TypeAlias = Callable[[Array], tuple[Array, Array]]
"""Maps planes [N, ...] of the sides to move to logits [N, choices] and values [N] between −1 and 1."""

# Logit of a missing move, so that it is never chosen.
_NOWHERE = np.float32(-1e9)
# Added to the visits of the most visited move in the weight of values (Danihelka et al. 2022).
_VISIT_OFFSET = 50


class Trees:
    """`room` has a game for every node: tree · nodes + node. The roots are games `which` of `games`."""

    def __init__(self, games: Games, which: Array, room: Games, nodes: int, judge: Judge, value_scale: float) -> None:
        self.count, self._nodes = len(which), nodes
        self._room, self._judge, self._scale = room, judge, np.float32(value_scale)
        grid = (self.count, nodes)
        self.over = np.zeros(grid, np.bool_)
        self.value = np.zeros(grid, np.float32)
        self.moves = np.full((*grid, 0), -1, np.int32)
        self.logits = np.full((*grid, 0), _NOWHERE, np.float32)
        self.child = np.full((*grid, 0), -1, np.int32)
        self.visits = np.zeros((*grid, 0), np.int32)
        self.total = np.zeros((*grid, 0), np.float32)
        every = np.arange(self.count)
        room.copy_from(every * nodes, games, which)
        self._look(every, np.zeros(self.count, np.int64))

    def simulate(self, node: int, first: Array) -> None:
        """Descends every tree, starting with the moves `first` [B], to a new position, which becomes `node`, or to the
        end of a game; then propagates its value back up."""
        rows, at, action = np.arange(self.count), np.zeros(self.count, np.int64), first
        path, fresh = [], []
        worth = np.zeros(self.count, np.float32)
        while len(rows):
            path.append((rows, at, action))
            child = self.child[rows, at, action]
            new = child < 0
            fresh.append((rows[new], at[new], action[new]))
            rows, at = rows[~new], child[~new].astype(np.int64)
            ended = self.over[rows, at]
            worth[rows[ended]] = self.value[rows[ended], at[ended]]
            rows, at = rows[~ended], at[~ended]
            action = self._inner_choice(rows, at)
        rows, parents, actions = (np.concatenate(parts) for parts in zip(*fresh, strict=True))
        if len(rows):
            self._grow(rows, parents, actions, node)
            worth[rows] = self.value[rows, node]
        for rows, at, action in reversed(path):
            worth[rows] = -worth[rows]
            self.total[rows, at, action] += worth[rows]
            self.visits[rows, at, action] += 1

    def worth(self, rows: Array, at: Array) -> Array:
        """Values of moves [N, moves] for the side to move. An untried move gets a mix of the node's network value and
        the policy-weighted mean of the tried moves."""
        logits, visits = self.logits[rows, at], self.visits[rows, at]
        tried, tries = visits > 0, visits.sum(axis=1)
        worth = self.total[rows, at] / np.maximum(visits, 1)
        chances = softmax(logits) * tried
        mean = (chances * worth).sum(axis=1) / np.maximum(chances.sum(axis=1), 1e-12)
        mixed = (self.value[rows, at] + tries * mean) / (1 + tries)
        return np.where(tried, worth, mixed[:, None])

    def improved(self, rows: Array, at: Array) -> Array:
        """Logits [N, moves] of the improved policy: the network's logits plus weighted values."""
        weight = (_VISIT_OFFSET + self.visits[rows, at].max(axis=1, initial=0)) * self._scale
        found = self.logits[rows, at] + weight[:, None] * self.worth(rows, at)
        return np.where(self.moves[rows, at] >= 0, found, _NOWHERE)

    def _inner_choice(self, rows: Array, at: Array) -> Array:
        """The move whose share of visits is furthest below its target."""
        if not len(rows):
            return rows
        visits = self.visits[rows, at]
        shares = visits / (1.0 + visits.sum(axis=1, keepdims=True))
        wanting = np.where(self.moves[rows, at] >= 0, softmax(self.improved(rows, at)) - shares, -np.inf)
        found: Array = wanting.argmax(axis=1)
        return found

    def _grow(self, rows: Array, parents: Array, actions: Array, node: int) -> None:
        """Plays moves into new nodes and evaluates the positions in one network call."""
        slots = rows * self._nodes + node
        self._room.copy_from(slots, self._room, rows * self._nodes + parents)
        verdicts = self._room.play(slots, self.moves[rows, parents, actions].astype(np.int64))
        self.child[rows, parents, actions] = node
        ended = verdicts != Verdict.GOES_ON
        self.over[rows, node] = ended
        # The verdict is for the side that moved; now the other is to move.
        self.value[rows, node] = -WORTH[verdicts]
        if not ended.all():
            self._look(rows[~ended], np.full(int((~ended).sum()), node))

    def _look(self, rows: Array, at: Array) -> None:
        slots = rows * self._nodes + at
        legal = self._room.legal(slots)
        outputs, values = self._judge(self._room.planes(slots))
        counts = legal.sum(axis=1)
        self._widen(int(counts.max(initial=0)))
        of, numbers = np.nonzero(legal)
        place = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.moves[rows[of], at[of], place] = numbers
        self.logits[rows[of], at[of], place] = outputs[of, numbers]
        self.value[rows, at] = values

    def _widen(self, width: int) -> None:
        """Grows the arrays to this many legal moves per node; few positions have many."""
        more = width - self.moves.shape[2]
        if more <= 0:
            return
        for name, fill in (("moves", -1), ("logits", _NOWHERE), ("child", -1), ("visits", 0), ("total", 0.0)):
            array = getattr(self, name)
            setattr(self, name, np.pad(array, ((0, 0), (0, 0), (0, more)), constant_values=fill))


def softmax(logits: Array) -> Array:
    """Along the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True, initial=_NOWHERE))
    found: Array = powers / powers.sum(axis=-1, keepdims=True)
    return found
