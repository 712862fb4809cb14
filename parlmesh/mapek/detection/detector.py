"""The detector interface: a value in, a score from 0 (usual) to 1 (unprecedented) out."""

import math
from typing import Any, ClassVar, Protocol, Self

EPSILON = 1e-12


class Detector(Protocol):
    """Uses bounded work and memory per value. The state is JSON and determines all later scores."""

    name: ClassVar[str]

    def update(self, time: float, value: float) -> float:
        """Scores the value against earlier ones, then learns it. `time` is Unix time."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything that later scores depend on."""
        ...

    @classmethod
    def restored(cls, state: dict[str, Any] | None) -> Self:
        """The detector with that state; None = a new one."""
        ...


def score_of(distance: float, half: float) -> float:
    """0 at distance 0, 0.5 at `half`, approaching 1 beyond."""
    return 1.0 - math.exp2(-max(distance, 0.0) / half)
