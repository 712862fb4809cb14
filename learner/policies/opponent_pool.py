"""Chooses the past versions that the learning side meets, and counts how often it has beaten them. Does no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from parlmesh.environments.two_players import NEWEST
from parlmesh.training.settings.opponents import OpponentsConfig


@dataclass(slots=True)
class Record:
    """Games of the learning side against one version."""

    won: int = 0
    drawn: int = 0
    lost: int = 0

    @property
    def games(self) -> int:
        """Number of games."""
        return self.won + self.drawn + self.lost

    @property
    def win_rate(self) -> float:
        """Share of wins, with a draw as half a win; about even for a version that was never met."""
        return (self.won + 0.5 * self.drawn + 0.5) / (self.games + 1)


class Share(NamedTuple):
    """A version and its share of the games."""

    version: int
    share: float


class OpponentPool:
    """Past versions in order of age."""

    def __init__(self, config: OpponentsConfig, rng: np.random.Generator) -> None:
        self._config = config
        self._rng = rng
        self._records: dict[int, Record] = {}

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions in the pool, oldest first."""
        return tuple(self._records)

    def due(self, version: int) -> bool:
        """Whether a published version becomes an opponent."""
        newest = max(self._records, default=None)
        return newest is None or version - newest >= self._config.interval_versions

    def add(self, version: int) -> tuple[int, ...]:
        """Adds a version; returns the versions removed to make room."""
        self._records[version] = self._records.pop(version, Record())
        gone = []
        while len(self._records) > self._config.kept:
            gone.append(self._nearest())
            del self._records[gone[-1]]
        return tuple(gone)

    def choose(self) -> list[Share]:
        """Chooses the opponents of one rollout; shares sum to 1."""
        config = self._config
        if not self._records or config.newest_share == 1.0:
            return [Share(NEWEST, 1.0)]
        versions = np.array(list(self._records))
        weights = self._weights()
        count = min(config.versions_per_rollout, int(np.count_nonzero(weights)))
        chosen = self._rng.choice(versions, size=count, replace=False, p=weights / weights.sum())
        past = [Share(int(version), (1.0 - config.newest_share) / count) for version in sorted(chosen.tolist())]
        return ([Share(NEWEST, config.newest_share)] if config.newest_share else []) + past

    def record(self, version: int, won: int, drawn: int, lost: int) -> bool:
        """Adds games against a version; False when it is no longer an opponent."""
        found = self._records.get(version)
        if found is None:
            return False
        found.won, found.drawn, found.lost = found.won + won, found.drawn + drawn, found.lost + lost
        return True

    def of(self, version: int) -> Record:
        """The record against a version."""
        return self._records[version]

    def state(self) -> dict[str, list[int]]:
        """All records, for JSON."""
        return {str(version): [each.won, each.drawn, each.lost] for version, each in self._records.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self._records = {int(version): Record(*map(int, counts)) for version, counts in sorted(state.items(), key=_age)}

    def _weights(self) -> np.ndarray:
        records = list(self._records.values())
        if self._config.past == "uniform":
            return np.ones(len(records))
        losing = np.array([1.0 - each.win_rate for each in records])
        weights: np.ndarray = losing**self._config.pfsp_exponent + 1e-6
        return weights

    def _nearest(self) -> int:
        """The version with the closest neighbours; the first and the newest are kept."""
        versions = sorted(self._records)
        if len(versions) < 3:
            return versions[0]
        gaps = {versions[index]: versions[index + 1] - versions[index - 1] for index in range(1, len(versions) - 1)}
        return min(gaps, key=lambda version: (gaps[version], version))


def _age(item: tuple[str, Any]) -> int:
    return int(item[0])
