"""Settings of the opponents in games; the string under a field is its help text."""

from typing import Literal, Self

from pydantic import Field, model_validator

from parlmesh.config import Config


class OpponentsConfig(Config):
    """Opponents of the learning side in rollouts. Unused in worlds with one player."""

    newest_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of games against the acting policy itself; the others are against past versions, once there are some."""
    past: Literal["uniform", "pfsp"] = "uniform"
    """How past versions are chosen: all equally often, or rarely beaten ones more often."""
    pfsp_exponent: float = Field(default=2.0, ge=0.0, le=10.0)
    """With pfsp, a version is weighted by (1 − win rate) to this power."""
    interval_versions: int = Field(default=20, ge=1, le=1_000_000)
    """Versions between two that become opponents; the first one always does."""
    kept: int = Field(default=20, ge=1, le=200)
    """Past versions kept as opponents; beyond that, the version closest to its neighbours is removed."""
    versions_per_rollout: int = Field(default=2, ge=1, le=16)
    """Past versions that one rollout plays against."""
    match_games: int = Field(default=0, ge=0, le=10_000)
    """Games against each of a few references after every evaluation: the first and the newest opponent and the promoted
    model; Elo with its error is written to the curves and the model. 0 = none."""
    gate: bool = False
    """Promote an evaluated model when its match shows that it beats the promoted one: the lower end of its score's 95 %
    interval is above a half. If none is promoted, the first one is. Needs match_games."""
    scripted: bool = False
    """Play against environment.kwargs.opponent instead of versions."""

    @model_validator(mode="after")
    def _gate_needs_matches(self) -> Self:
        if self.gate and not self.match_games:
            raise ValueError("opponents.gate needs opponents.match_games, which is 0")
        return self
