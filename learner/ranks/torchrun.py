"""A launcher that started this process as one rank of several: torchrun, or anything that sets its variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parlmesh.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Launcher:
    """This process's rank and group, from the environment."""

    rank: int
    size: int

    @classmethod
    def found(cls, environment: Mapping[str, str] = os.environ) -> "Launcher | None":
        """None when no launcher started this process, or only this one."""
        if "RANK" not in environment or "WORLD_SIZE" not in environment:
            return None
        try:
            rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        except ValueError:
            rank, size = -1, 0
        if not 0 <= rank < size:
            said = f"RANK {environment['RANK']!r} and WORLD_SIZE {environment['WORLD_SIZE']!r}"
            raise ConfigError(f"{said} are set by a launcher; RANK must be from 0 to below WORLD_SIZE")
        return cls(rank, size) if size > 1 else None

    def store(self) -> Any:
        """The store in which all ranks of this start find each other, at MASTER_ADDR and MASTER_PORT."""
        from .collectives import dist

        store, _, _ = next(iter(dist.rendezvous("env://", self.rank, self.size)))
        # torchrun keeps one store across its restarts.
        return dist.PrefixStore(f"parlmesh/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def follow(self) -> int:
        """Runs this process as a rank other than 0; returns its exit code."""
        from .collectives import Group
        from .follower_rank import obey
        from .rank_processes import PATIENCE_SECONDS

        return obey(Group(self.store(), self.rank, self.size, seconds=PATIENCE_SECONDS))
