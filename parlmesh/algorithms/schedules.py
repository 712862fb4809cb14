"""Values that change with the used share of the step budget: exploration, importance, step sizes."""

from typing import Literal

Shape = Literal["linear", "exponential"]


def scheduled(progress: float, start: float, final: float, *, share: float = 1.0, shape: Shape = "linear") -> float:
    """From `start` at progress 0 to `final` at progress `share` and beyond.

    linear:      start · (1 − x) + final · x,     x = progress / share in [0, 1]
    exponential: start · (final / start) ** x, which needs both to be positive
    """
    reached = 1.0 if share <= 0.0 else min(max(progress / share, 0.0), 1.0)
    if shape == "linear":
        return start * (1.0 - reached) + final * reached
    return start * float((final / start) ** reached)
