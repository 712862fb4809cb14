"""How long a node's symptom rests after an action: longer with each consecutive failure. Has no clock."""

from dataclasses import dataclass

_MOST_DOUBLINGS = 6


@dataclass(frozen=True, slots=True)
class LastAction:
    """The latest action for a symptom of a node."""

    time: float
    failures: int
    """Consecutive failures, including this action."""

    def free_at(self, cooldown_seconds: float) -> float:
        """When the next action may start; the cool-down doubles with each failure."""
        return self.time + cooldown_seconds * 2.0 ** min(self.failures, _MOST_DOUBLINGS)


def after(before: LastAction | None, success: bool, now: float) -> LastAction:
    """The record after another action has ended."""
    return LastAction(now, 0 if success else (before.failures if before else 0) + 1)
