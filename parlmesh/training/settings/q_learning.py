"""Settings of tabular Q-learning; the string under a field is its help text."""

from pydantic import Field

from parlmesh.config import Config

from .exploration import ExplorationConfig


class QLearningConfig(Config):
    """A table of values with a row per state."""

    step_size: float = Field(default=0.5, gt=0.0, le=1.0)
    """Fraction by which a value moves to its target at the start (alpha)."""
    final_step_size: float = Field(default=0.02, gt=0.0, le=1.0)
    """Its value at the end of the step budget; falls exponentially."""
    discount: float = Field(default=0.99, ge=0.0, le=1.0)
    """Worth of a reward one step later (gamma)."""
    initial_value: float = 0.0
    """Initial value of every action; high values encourage trying the unknown."""
    exploration: ExplorationConfig = ExplorationConfig()
