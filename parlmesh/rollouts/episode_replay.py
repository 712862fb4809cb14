"""Since when each environment of a collector plays, and what was done since: enough to play it all again."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from parlmesh.telemetry import get_logger
from parlmesh.types import Array

log = get_logger("parlmesh.rollouts")

# More actions than these are not kept: an environment whose episodes have no end is never started anew.
_MOST_BYTES = 64 * 1024 * 1024


class Played(NamedTuple):
    """What brings environments to where they are."""

    starts: Array
    """The number of each one's life [E]; the first begins before the first row."""
    began: Array
    """The row of `actions` by which each life began [E]."""
    actions: tuple[Array, ...]
    """Some rows each [rows, E, ...]."""


class Row(NamedTuple):
    """One of those that are played again."""

    action: Array
    seeds: dict[int, int]
    """Of the environments whose lives begin with this row."""
    waiting: Array
    """Those whose lives begin with a later one [E]."""


class Lives:
    """A life of an environment is what follows one seed. With `restart_steps` each begins another one with the first
    episode that begins so many rows after the life before: none is cut for that.

    Actions are remembered only where that is `repeatable`, and of those only what the present lives need.
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
        """All that the present lives need; None when nothing is remembered, or there was more than is kept."""
        if not self._remembers:
            return None
        return Played(self._starts.copy(), self._began - self._first_row, tuple(self._actions))

    def next_lives(self, ended: Array, row: int) -> dict[int, int]:
        """The seeds of environments that begin another life now, `row` rows after the last that was `add`ed."""
        if not self._restart_steps:
            return {}
        now = self._rows + row
        due = np.flatnonzero(ended & (now - self._began >= self._restart_steps))
        self._starts[due] += 1
        self._began[due] = now
        return self._seeds(due)

    def add(self, actions: Array) -> None:
        """Rows that were played."""
        self._rows += len(actions)
        if not self._remembers:
            return
        self._actions.append(actions)
        needed = self._first_row if (self._starts == 1).any() else int(self._began.min())
        while self._first_row + len(self._actions[0]) <= needed:
            self._first_row += len(self._actions.pop(0))
        if sum(each.nbytes for each in self._actions) > _MOST_BYTES:
            self._remembers, self._actions = False, []
            log.warning("games_not_remembered", steps=self._rows, advice="resumed, this run plays other games")

    def play_again(self, played: Played) -> Iterator[Row]:
        """Row by row; lives go on from there."""
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
