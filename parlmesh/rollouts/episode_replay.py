"""When each environment of a collector was last seeded, and all actions since: enough to replay everything."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from parlmesh.telemetry import get_logger
from parlmesh.types import Array

log = get_logger("parlmesh.rollouts")

# No more actions than this are kept, since an environment whose episodes never end is never seeded again.
_MOST_BYTES = 64 * 1024 * 1024


class Played(NamedTuple):
    """The data that bring environments to their present state."""

    starts: Array
    """Number of each environment's life [E]; the first starts before the first row."""
    began: Array
    """Row of `actions` at which each life started [E]."""
    actions: tuple[Array, ...]
    """Blocks of rows [rows, E, ...]."""


class Row(NamedTuple):
    """A row that is replayed."""

    action: Array
    seeds: dict[int, int]
    """Seeds of the environments whose lives start with this row."""
    waiting: Array
    """Environments whose lives start with a later row [E]."""


class Lives:
    """A life of an environment is its course after one seed. With `restart_steps`, each environment starts another life
    with the first episode that starts at least that many rows into its life: no episode is cut short for that.

    Actions are remembered only if `repeatable`, and only those that the present lives need.
    """

    def __init__(self, num_envs: int, seed: np.random.SeedSequence, *, restart_steps: int, repeatable: bool) -> None:
        self._seed = seed
        self._restart_steps = restart_steps
        self._remembers = repeatable
        self._starts = np.ones(num_envs, np.int64)
        self._began = np.zeros(num_envs, np.int64)
        self._rows = self._first_row = 0
        self._actions: list[Array] = []

    def played(self) -> Played | None:
        """All data of the present lives; None if nothing is remembered or there was too much to keep."""
        if not self._remembers:
            return None
        return Played(self._starts.copy(), self._began - self._first_row, tuple(self._actions))

    def next_lives(self, ended: Array, row: int) -> dict[int, int]:
        """Seeds of the environments that start another life now, `row` rows after the last one that was added."""
        if not self._restart_steps:
            return {}
        now = self._rows + row
        due = np.flatnonzero(ended & (now - self._began >= self._restart_steps))
        self._starts[due] += 1
        self._began[due] = now
        return self._seeds(due)

    def add(self, actions: Array) -> None:
        """Adds rows that were played."""
        self._rows += len(actions)
        if not self._remembers:
            return
        self._actions.append(actions)
        needed = self._first_row if (self._starts == 1).any() else int(self._began.min())
        while self._first_row + len(self._actions[0]) <= needed:
            self._first_row += len(self._actions.pop(0))
        if sum(each.nbytes for each in self._actions) > _MOST_BYTES:
            self._remembers, self._actions = False, []
            log.warning("games_not_remembered", steps=self._rows, advice="when resumed, this run plays other games")

    def play_again(self, played: Played) -> Iterator[Row]:
        """Yields the rows to replay; lives continue from there."""
        self._starts, self._began = played.starts.copy(), played.began.copy()
        later = self._starts > 1
        for row, action in enumerate(itertools.chain.from_iterable(played.actions)):
            yield Row(action, self._seeds(np.flatnonzero(later & (self._began == row))), later & (self._began > row))
        self._first_row, self._rows = 0, sum(map(len, played.actions))
        self._actions = list(played.actions)

    def _seeds(self, due: Array) -> dict[int, int]:
        return {int(index): self._seed_of(int(index), int(self._starts[index])) for index in due}

    def _seed_of(self, index: int, start: int) -> int:
        key = (*self._seed.spawn_key, 2, index, start)
        return int(np.random.SeedSequence(self._seed.entropy, spawn_key=key).generate_state(1)[0])
