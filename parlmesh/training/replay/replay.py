"""Replay: uniform, and by priority (Schaul et al. 2016, arXiv:1511.05952). When full, the oldest steps are removed
first."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from parlmesh.types import Array

from .ring import Columns, Overwritten, Ring
from .sum_tree import SumTree

# Every step can be drawn, however well it is predicted.
_SMALLEST_PRIORITY = 1e-6


class Sample(NamedTuple):
    """B rows, their slots, and the weights [B] that undo the bias of the draw; None when there is none."""

    rows: dict[str, Array]
    slots: Array
    weights: Array | None


class Replay(Protocol):
    """Not thread-safe: it belongs to its trainer."""

    def __len__(self) -> int:
        """Steps held."""

    @property
    def inserted(self) -> int:
        """Steps ever inserted."""

    def begin(self) -> None:
        """Marks the state that `undo` returns to."""

    def undo(self) -> None:
        """Undoes every insert and priority since `begin`."""

    def add(self, rows: Mapping[str, Array]) -> None:
        """Adds rows, as if one by one, in order."""

    def forget(self, count: int) -> None:
        """Never draws the first `count` steps ever inserted again."""

    def sample(self, count: int, importance: float, rng: np.random.Generator) -> Sample:
        """`count` rows with replacement; `importance` in [0, 1] is how much of the bias the weights undo."""

    def learnt(self, slots: Array, errors: Array) -> None:
        """Notes the prediction errors of the last sample's steps."""

    def tensors(self) -> dict[str, Array]:
        """Everything that decides the next sample."""

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""


class UniformReplay:
    """Every step is as likely as any other."""

    def __init__(self, columns: Columns, capacity: int) -> None:
        self._ring = Ring(columns, capacity)
        self._forgotten = 0
        self._overwritten: list[Overwritten] = []

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def inserted(self) -> int:
        """Steps ever inserted."""
        return self._ring.inserted

    def begin(self) -> None:
        """Marks the state that `undo` returns to."""
        self._overwritten, self._forgotten = [], self._ring.forgotten

    def undo(self) -> None:
        """Undoes the newest changes first."""
        while self._overwritten:
            self._ring.undo(self._overwritten.pop())
        self._ring.forgotten = self._forgotten

    def add(self, rows: Mapping[str, Array]) -> None:
        """Adds rows; when full, the oldest go."""
        self._overwritten.append(self._ring.add(rows))

    def forget(self, count: int) -> None:
        """Forgets the oldest steps."""
        self._ring.forgotten = max(count, self._ring.forgotten)

    def sample(self, count: int, importance: float, rng: np.random.Generator) -> Sample:
        """Without weights: there is no bias."""
        slots = self._ring.slots_of(rng.integers(0, len(self._ring), count))
        return Sample(self._ring.rows(slots), slots, None)

    def learnt(self, slots: Array, errors: Array) -> None:
        """Changes nothing."""

    def tensors(self) -> dict[str, Array]:
        """The steps."""
        return self._ring.tensors()

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        self._ring.restore(tensors)


class PrioritisedReplay:
    """A step is drawn in proportion to (|error| + ε)^exponent; a new one as if its error were the largest yet seen."""

    def __init__(self, columns: Columns, capacity: int, *, exponent: float) -> None:
        self._ring = Ring(columns, capacity)
        self._tree = SumTree(capacity)
        self._exponent = exponent
        # The largest priority so far.
        self._highest = 1.0
        self._highest_before = 1.0
        self._forgotten = 0
        self._overwritten: list[Overwritten] = []
        self._changed: list[tuple[Array, Array]] = []

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def inserted(self) -> int:
        """Steps ever inserted."""
        return self._ring.inserted

    def begin(self) -> None:
        """Marks the state that `undo` returns to."""
        self._overwritten, self._changed, self._highest_before = [], [], self._highest
        self._forgotten = self._ring.forgotten

    def undo(self) -> None:
        """Undoes the newest changes first."""
        while self._changed:
            self._tree.set(*self._changed.pop())
        while self._overwritten:
            self._ring.undo(self._overwritten.pop())
        self._ring.forgotten = self._forgotten
        self._highest = self._highest_before

    def add(self, rows: Mapping[str, Array]) -> None:
        """Adds rows; when full, the oldest go."""
        overwritten = self._ring.add(rows)
        self._overwritten.append(overwritten)
        self._set(overwritten.slots, np.full(len(overwritten.slots), self._highest))

    def forget(self, count: int) -> None:
        """Sets the priority of these steps to 0, so that they are never drawn."""
        ring = self._ring
        gone = np.arange(ring.first, max(ring.first, count)) % ring.capacity
        ring.forgotten = max(count, ring.forgotten)
        self._set(gone, np.zeros(len(gone)))

    def sample(self, count: int, importance: float, rng: np.random.Generator) -> Sample:
        """Stratified: one draw from each of `count` equal parts of the whole.

        weight = (steps · probability)^−importance, divided by the largest of the sample.
        """
        total = self._tree.total
        slots = self._tree.find((np.arange(count) + rng.random(count)) * (total / count))
        weights = (self._tree.leaves[slots] * (len(self._ring) / total)) ** -importance
        weights /= weights.max()
        return Sample(self._ring.rows(slots), slots, weights.astype(np.float32))

    def learnt(self, slots: Array, errors: Array) -> None:
        """Sets the new priorities of these steps."""
        priorities = (np.abs(errors).astype(np.float64) + _SMALLEST_PRIORITY) ** self._exponent
        self._highest = max(self._highest, float(priorities.max()))
        self._set(slots, priorities)

    def tensors(self) -> dict[str, Array]:
        """The steps and their priorities."""
        priorities = self._tree.leaves[: self._ring.filled].copy()
        highest = np.array([self._highest])
        return {**self._ring.tensors(), "replay.priorities": priorities, "replay.highest": highest}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        self._ring.restore(tensors)
        self._highest = float(tensors["replay.highest"][0])
        self._tree.set(np.arange(len(self._tree.leaves)), np.zeros(len(self._tree.leaves)))
        self._tree.set(np.arange(self._ring.filled), tensors["replay.priorities"])

    def _set(self, slots: Array, priorities: Array) -> None:
        self._changed.append((slots, self._tree.leaves[slots]))
        self._tree.set(slots, priorities)
