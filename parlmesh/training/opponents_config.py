"""Settings of the other side of a game; the string under a field is its help text."""

from typing import Literal

from pydantic import Field

from parlmesh.config import Config


class OpponentsConfig(Config):
    """Whom the learning side of a game meets in rollouts. Worlds with one player have no use for it."""

    newest_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of games against the acting policy itself; the others are against past versions, once there are some."""
    past: Literal["uniform", "pfsp"] = "uniform"
    """How past versions are chosen: all alike, or those more often that are seldom beaten."""
    pfsp_exponent: float = Field(default=2.0, ge=0.0, le=10.0)
    """With pfsp: a version counts (1 − win rate) to this power."""
    interval_versions: int = Field(default=20, ge=1, le=1_000_000)
    """Versions between two that become opponents; the first one always does."""
    kept: int = Field(default=20, ge=1, le=200)
    """Past versions that are kept as opponents; when there are more, the one nearest to its neighbour goes."""
    versions_per_rollout: int = Field(default=2, ge=1, le=16)
    """Past versions that one rollout plays against."""
    scripted: bool = False
    """Play against environment.kwargs.opponent instead of versions."""
