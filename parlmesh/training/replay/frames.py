"""Images of a replay, each plane kept once.

A stack of the last images advances by one at every step, and the next observation of a step is the observation of
another: kept apart, every image would be stored up to eight times. So an observation is kept as its planes' numbers.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from parlmesh.errors import ConfigError
from parlmesh.types import Array


class Block(NamedTuple):
    """The steps of one fragment: its first plane, and the step after its last, both counted from the first ever."""

    first_plane: int
    end: int


class Frames:
    """Plane i, counted from the first ever added, lies in slot i modulo the capacity; the oldest are removed first.

    A stack advances by `shift` planes a step.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, capacity: int, *, shift: int) -> None:
        self.planes, height, width = shape
        self.added = 0
        self._shift = shift
        self._held = np.empty((capacity, height, width), dtype)
        self._blocks: deque[Block] = deque()
        self._before: tuple[int, tuple[Block, ...]] = (0, ())
        self._overwritten: list[tuple[Array, Array]] = []

    @property
    def capacity(self) -> int:
        """Planes held at most."""
        return len(self._held)

    def begin(self) -> None:
        """Marks the state that `undo` returns to."""
        self._before, self._overwritten = (self.added, tuple(self._blocks)), []

    def undo(self) -> None:
        """Removes the planes added since `begin`."""
        while self._overwritten:
            slots, planes = self._overwritten.pop()
            self._held[slots] = planes
        self.added, blocks = self._before
        self._blocks = deque(blocks)

    def add(self, observations: Array, end: int) -> Array:
        """Adds a fragment's observations [T + 1, E, C, H, W]; returns the numbers [T + 1, E, C] of their planes.

        `end` is the number of steps ever inserted, including those of this fragment.
        """
        stored, ids = _numbered(observations, self._shift)
        planes = observations[stored]
        if len(planes) > self.capacity:
            raise ConfigError(
                f"a trajectory has {len(planes)} different images, and the replay has room for {self.capacity}: "
                "raise training.dqn.replay.capacity_bytes, or lower num_envs or trajectory_steps"
            )
        slots = np.arange(self.added, self.added + len(planes)) % self.capacity
        self._overwritten.append((slots, self._held[slots]))
        self._held[slots] = planes
        self._blocks.append(Block(self.added, end))
        ids += self.added
        self.added += len(planes)
        return ids

    def forgotten(self) -> int:
        """How many steps, from the first ever, belong to fragments that have lost planes."""
        oldest, end = self.added - self.capacity, 0
        while self._blocks and self._blocks[0].first_plane < oldest:
            end = self._blocks.popleft().end
        return end

    def read(self, ids: Array) -> Array:
        """Observations [B, C, H, W]."""
        found: Array = self._held[ids % self.capacity]
        return found

    def tensors(self) -> dict[str, Array]:
        """All planes, as they are stored."""
        return {
            "replay.planes": self._held[: min(self.added, self.capacity)].copy(),
            "replay.planes_added": np.array([self.added], np.int64),
            "replay.blocks": np.array(self._blocks, np.int64).reshape(-1, 2),
        }

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`, for the same capacity."""
        planes, added = tensors["replay.planes"], int(tensors["replay.planes_added"][0])
        if len(planes) != min(added, self.capacity):
            raise ConfigError(f"the replay was saved with {len(planes)} images; this one has room for {self.capacity}")
        self._held[: len(planes)] = planes
        self.added = added
        self._blocks = deque(Block(int(first), int(end)) for first, end in tensors["replay.blocks"])


def _numbered(observations: Array, shift: int) -> tuple[Array, Array]:
    """Which planes [T, E, C] are new, and for each plane the number of the new one it equals."""
    rows, _, planes = observations.shape[:3]
    moved = np.zeros(observations.shape[:2], np.bool_)
    moved[1:] = (observations[1:, :, :-shift] == observations[:-1, :, shift:]).all(axis=(2, 3, 4))
    # An episode starts with copies of its first image.
    copied = ~moved & (observations[:, :, shift:] == observations[:, :, :-shift]).all(axis=(2, 3, 4))
    stored = np.ones(observations.shape[:3], np.bool_)
    stored[moved, : planes - shift] = False
    stored[copied, shift:] = False
    ids = stored.reshape(-1).cumsum().reshape(stored.shape) - 1
    starts, places = ids[:, :, :1], np.arange(planes)
    ids = np.where(copied[:, :, None], starts + places % shift, ids)
    for row in range(1, rows):
        went_on = moved[row]
        ids[row, went_on, : planes - shift] = ids[row - 1, went_on, shift:]
    return stored, ids
