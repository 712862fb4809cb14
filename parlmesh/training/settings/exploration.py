"""Settings of epsilon-greedy exploration; the string under a field is its help text."""

from typing import Literal

from pydantic import Field, model_validator

from parlmesh.algorithms.schedules import scheduled
from parlmesh.config import Config


class ExplorationConfig(Config):
    """The share of steps with a random action, over the step budget."""

    start: float = Field(default=1.0, ge=0.0, le=1.0)
    """Epsilon of the first policy."""
    final: float = Field(default=0.05, ge=0.0, le=1.0)
    """Epsilon at the end of the fall."""
    share: float = Field(default=0.2, gt=0.0, le=1.0)
    """Share of the step budget over which epsilon falls."""
    shape: Literal["linear", "exponential"] = "linear"
    """How it falls; exponential needs a start and a final above 0."""

    @model_validator(mode="after")
    def _positive_where_needed(self) -> "ExplorationConfig":
        if self.shape == "exponential" and min(self.start, self.final) <= 0.0:
            raise ValueError(f"shape exponential needs start and final above 0, got {self.start:g} and {self.final:g}")
        return self

    def epsilon(self, progress: float) -> float:
        """Epsilon when this share of the budget is used."""
        return scheduled(progress, self.start, self.final, share=self.share, shape=self.shape)
