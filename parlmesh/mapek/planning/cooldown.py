"""How long a symptom of a node is left alone after an action: longer with each failure in a row. Has no clock."""

from dataclasses import dataclass

_MOST_DOUBLINGS = 6


@dataclass(frozen=True, slots=True)
class LastAction:
    """The newest action for a symptom of a node."""

    time: float
    failures: int
    """In a row, this one included."""

    def free_at(self, cooldown_seconds: float) -> float:
        """When the next may begin; the cool-down doubles with each failure."""
        return self.time + cooldown_seconds * 2.0 ** min(self.failures, _MOST_DOUBLINGS)


def after(before: LastAction | None, success: bool, now: float) -> LastAction:
    """What is known once another action has ended."""
    return LastAction(now, 0 if success else (before.failures if before else 0) + 1)
