"""How the weight of an auxiliary reward falls during training."""

import math
from typing import Literal, TypeAlias

from parlmesh.errors import InvalidInput

Shape: TypeAlias = Literal["linear", "cosine", "constant"]
SHAPES: tuple[Shape, ...] = ("linear", "cosine", "constant")


def anneal(initial: float, final: float, step: float, total_steps: int, shape: Shape = "linear") -> float:
    """The weight at a step: `initial` at 0 and before, `final` at `total_steps` and after."""
    if total_steps < 1:
        raise InvalidInput(f"total_training_steps must be >= 1, got {total_steps}")
    if not math.isfinite(step):
        raise InvalidInput(f"training_step must be finite, got {step}")
    if shape == "constant":
        return initial
    progress = min(max(step / total_steps, 0.0), 1.0)
    if shape == "cosine":
        progress = (1 - math.cos(math.pi * progress)) / 2
    elif shape != "linear":
        raise InvalidInput(f"schedule is {shape!r}; allowed are {', '.join(SHAPES)}")
    return initial + (final - initial) * progress
