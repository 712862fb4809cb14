"""The source of a run's experience: a fleet or this process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from parlmesh.types import Array


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Greedy play of one version."""

    version: int
    mean_return: float
    min_return: float
    max_return: float
    episodes: int


@dataclass(frozen=True, slots=True)
class MatchResult:
    """Games of one version against another."""

    version: int
    opponent: int
    won: int
    drawn: int
    lost: int


class ExperienceSource(Protocol):
    """Provides trajectories and evaluations on request."""

    @property
    def outstanding(self) -> int:
        """Requested trajectories that have neither arrived nor failed."""

    async def request(self, count: int, min_version: int) -> None:
        """Asks for trajectories of a policy not older than `min_version`; they arrive in the run's queue."""

    async def evaluate(self, version: int, seed: int, seconds: float) -> Evaluation:
        """Plays whole episodes greedily with this version alone; TimeoutError after `seconds`, when play stops."""

    async def match(self, version: int, opponent: int, seed: int, seconds: float) -> MatchResult:
        """Plays `opponents.match_games` games of two versions; TimeoutError after `seconds`."""

    def tensors(self, *, untrained: int) -> Mapping[str, Array]:
        """The state that decides the next trajectories, for a checkpoint; the last `untrained` are not learnt from yet.

        Empty if it cannot be saved: actors continue independently.
        """
