"""How long a rollout may take before it is cancelled."""

import statistics
from collections import deque

_RECENT = 64
# Fewer are no guide, because a run's first rollouts also build environments.
_LEAST_KNOWN = 16
_TIMES_THE_USUAL = 20.0
_LEAST_SECONDS = 10.0


class RolloutDeadline:
    """A limit of many times the duration of the run's recent rollouts.

    With a fixed limit alone, one actor that holds all rollouts of a run could stall it for that long.
    """

    def __init__(self, most_seconds: float) -> None:
        self._most = most_seconds
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._slow_in_a_row = 0

    @property
    def seconds(self) -> float:
        """The next rollout's deadline; doubled after each rollout that was too slow, in case all of them have become
        slow."""
        if len(self._recent) < _LEAST_KNOWN:
            return self._most
        usual = max(_LEAST_SECONDS, _TIMES_THE_USUAL * statistics.median(self._recent))
        return min(self._most, usual * 2.0 ** min(self._slow_in_a_row, 30))

    def took(self, seconds: float) -> None:
        """Records how long a rollout took to deliver."""
        self._recent.append(seconds)
        self._slow_in_a_row = 0

    def missed(self, seconds: float) -> bool:
        """Records that a rollout did not deliver within its limit; tells whether it was below the run's own."""
        slow = seconds < self._most
        self._slow_in_a_row += slow
        return slow
