"""Decides when to restart a child that ended. Knows nothing of processes; the clock is passed in."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RestartLimits:
    """How often and how fast a supervisor restarts one child."""

    first_seconds: float = 0.1
    factor: float = 2.0
    longest_seconds: float = 5.0
    window_seconds: float = 60.0
    max_restarts: int = 8
    """Restarts within the window; after one more end, the supervisor stops restarting the child."""
    max_alike: int = 5
    """Ends in a row with the same last words, before the child ever served, after which it is not restarted."""


DEFAULT_LIMITS = RestartLimits()


def restart_delay(ends: Sequence[float], now: float, limits: RestartLimits = DEFAULT_LIMITS) -> float | None:
    """Seconds to wait before the next start, or None when the child ended too often.

    `ends` are the times at which the child ended on its own, including the last. With n of them within the window:
    delay = min(longest, first · factor^(n−1)), and None when n > max_restarts.
    """
    recent = sum(1 for end in ends if now - end < limits.window_seconds)
    if recent > limits.max_restarts:
        return None
    # The exponent is bounded so that a long history cannot overflow the power.
    doublings = min(max(recent - 1, 0), 64)
    return min(limits.longest_seconds, limits.first_seconds * limits.factor**doublings)
