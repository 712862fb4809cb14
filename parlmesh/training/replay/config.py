"""Settings of a replay; the string under a field is its help text."""

from typing import Literal

from pydantic import Field

from parlmesh.config import Config

_GIBIBYTE = 1024**3


class ReplayConfig(Config):
    """Steps that are kept and trained on more than once."""

    kind: Literal["uniform", "prioritised"] = "uniform"
    """How steps are drawn: all equally often, or badly predicted ones more often."""
    capacity_steps: int = Field(default=50_000, ge=1, le=1_000_000_000)
    """Steps kept; when full, the oldest are removed first."""
    capacity_bytes: int = Field(default=_GIBIBYTE, ge=1024)
    """Bytes kept at most, whatever capacity_steps says. A step holds its own and its next observation, but each image
    is kept once, even if stacked observations share it."""
    min_steps: int = Field(default=1_000, ge=1)
    """Steps collected before the first is trained on."""
    samples_per_insert: float = Field(default=16.0, gt=0.0, le=10_000.0)
    """How often a step is trained on, on average; sampling never exceeds this ratio."""
    priority_exponent: float = Field(default=0.6, ge=0.0, le=1.0)
    """How much priorities count (alpha), for prioritised; 0 = not at all."""
    importance_start: float = Field(default=0.4, ge=0.0, le=1.0)
    """How much of the bias of prioritised draws is undone at the start (beta)."""
    importance_final: float = Field(default=1.0, ge=0.0, le=1.0)
    """Its value at the end of the step budget."""
    checkpointed: bool = True
    """Save the steps with every checkpoint, so that a resumed run continues exactly; otherwise it first collects
    min_steps again. If the replay is large, choose false or checkpoint rarely."""
