"""The best operations when everything but bursts is known in advance: bursts can only be insured against.

`InsuredSearch` is exact except that it rounds the height of a burst to a few levels and carries no backlog from one
step to the next.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from parlmesh.types import Array

from .best_course import CourseSearch
from .episode_conditions import Conditions
from .load_patterns import BURST_EVERY, BURST_FACTORS, BURST_STEPS, CALM

_HEIGHTS = 5


class InsuredSearch(CourseSearch):
    """Treats the start and end of a burst as random; the current burst is visible."""

    def plan(self, conditions: Conditions, kinds: Sequence[str], factors: Array) -> "Plan":
        """The best operations for every step, burst case and placement, for load with these factors [T+1, D]."""
        levels = [_levels() if kind == "bursty" else np.ones(1) for kind in kinds]
        bursty = np.array([kind == "bursty" for kind in kinds])
        chances: Array = np.ones((1, 1))
        for level in levels:
            chances = np.kron(chances, _chances(len(level) - 1))
        steps, cases = self.settings.episode_steps, list(product(*levels))
        value = np.zeros((len(cases), len(self.pods)))
        choices = np.zeros((steps, *value.shape), np.int64)
        for step in reversed(range(steps)):
            calm = conditions.load[step + 1] / np.where(bursty, factors[step + 1], 1.0)
            each = [self.earned(conditions, step, calm * case, value[at]) for at, case in enumerate(cases)]
            expected = np.tensordot(chances, np.stack(each), axes=1)
            choices[step], value = expected.argmax(axis=2), expected.max(axis=2)
        return Plan(self, choices, [_case(levels, np.where(bursty, row, 1.0)) for row in factors])

    def milliseconds(self, load: Array, site: Array, alive: Array) -> Array:
        """Like the base class, but overload costs the full timeout now, including the half that is due a step later."""
        capacity = np.maximum(np.where(alive, self.alone, 0).sum(axis=1)[:, None], 1) * self.cluster.service_rate
        full = load > capacity * (1.0 + self.settings.timeout_ms / 1000.0 / self.settings.step_seconds)
        found: Array = np.where(full, self.settings.timeout_ms, super().milliseconds(load, site, alive))
        return found


class Plan:
    """The plan for one episode."""

    def __init__(self, search: InsuredSearch, choices: Array, cases: Sequence[int]) -> None:
        self._search, self._choices, self._cases = search, choices, cases

    def operations(self, step: int, pods: Array) -> Array:
        """The operations [D] for the current pods [N, D]."""
        found: Array = self._search.operations[self._choices[step, self._cases[step], self._search.at(pods)]]
        return found


class Replanner:
    """Plans one episode without foresight: it knows the model and the load profile, and assumes that users and nodes do
    not change. It is not a bound: preparing for moves may be better."""

    def __init__(self, search: InsuredSearch, kinds: Sequence[str], factors: Array) -> None:
        self._search, self._kinds, self._factors = search, kinds, factors
        self._seen = b""
        self._plan: Plan

    def operations(self, step: int, site: Array, alive: Array, pods: Array) -> Array:
        """The operations [D] for users at these sites [D], these nodes up [N] and the current pods [N, D]."""
        seen = site.tobytes() + alive.tobytes()
        if seen != self._seen:
            settings, rows = self._search.settings, len(self._factors)
            load = self._search.cluster.request_rate * settings.load_scale * self._factors
            stays = Conditions(load, site[None].repeat(rows, axis=0), alive[None].repeat(rows, axis=0))
            self._seen, self._plan = seen, self._search.plan(stays, self._kinds, self._factors)
        return self._plan.operations(step, pods)


def _levels() -> Array:
    """The calm level, then burst heights at the midpoints of equal parts of their range."""
    low, high = BURST_FACTORS
    return np.concatenate(([CALM], low + (high - low) * (np.arange(_HEIGHTS) + 0.5) / _HEIGHTS))


def _chances(heights: int) -> Array:
    """Transition probabilities between calm and the burst heights."""
    if not heights:
        return np.ones((1, 1))
    # Gaps between bursts and their lengths are memoryless.
    begins, ends = 1.0 - np.exp(-1.0 / BURST_EVERY), 1.0 - np.exp(-1.0 / BURST_STEPS)
    found: Array = np.eye(1 + heights) * (1.0 - ends)
    found[1:, 0] = ends
    found[0] = begins / heights
    found[0, 0] = 1.0 - begins
    return found


def _case(levels: Sequence[Array], factors: Array) -> int:
    """The index of the case nearest to these factors [D]."""
    nearest = [int(np.abs(level - factor).argmin()) for level, factor in zip(levels, factors, strict=True)]
    return int(np.ravel_multi_index(nearest, [len(level) for level in levels]))
