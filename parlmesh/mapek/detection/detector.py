"""What a detector is: a value in, a score from 0 (usual) to 1 (never seen the like) out."""

import math
from typing import Any, ClassVar, Protocol, Self

EPSILON = 1e-12


class Detector(Protocol):
    """Work and memory for a value are bounded, whatever came before. The state is JSON and decides all later scores."""

    name: ClassVar[str]

    def update(self, time: float, value: float) -> float:
        """Scores the value against what came before, then learns it. `time` is Unix time."""
        ...

    def state(self) -> dict[str, Any]:
        """All that the next scores depend on."""
        ...

    @classmethod
    def restored(cls, state: dict[str, Any] | None) -> Self:
        """As it was; None = a new one."""
        ...


def score_of(distance: float, half: float) -> float:
    """0 at no distance, 0.5 at `half`, towards 1 beyond."""
    return 1.0 - math.exp2(-max(distance, 0.0) / half)
