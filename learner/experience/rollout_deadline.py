"""How long a rollout may take before it is given up."""

import statistics
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

_RECENT = 64
# Fewer are no guide, because a run's first rollouts also build environments.
_LEAST_KNOWN = 16
_TIMES_THE_USUAL = 20.0
_LEAST_SECONDS = 10.0


class _Asked(NamedTuple):
    at: float
    limit: float


class RolloutDeadline:
    """A limit of many times what the run's recent rollouts took.

    With a fixed limit alone, one actor that holds all rollouts of a run could stall it for that long.
    """

    def __init__(self, most_seconds: float) -> None:
        self._most = most_seconds
        self._asked: dict[str, _Asked] = {}
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._slow_in_a_row = 0

    @property
    def limit(self) -> float:
        """Seconds for the next rollout; doubled after each that was too slow, in case all of them have become slow."""
        if len(self._recent) < _LEAST_KNOWN:
            return self._most
        usual = max(_LEAST_SECONDS, _TIMES_THE_USUAL * statistics.median(self._recent))
        return min(self._most, usual * 2.0 ** min(self._slow_in_a_row, 30))

    def ask(self, task_ids: Iterable[str], now: float) -> None:
        """Gives these tasks the current limit."""
        limit = self.limit
        self._asked.update((task_id, _Asked(now, limit)) for task_id in task_ids)

    def deliver(self, task_id: str, now: float) -> None:
        """Records that a task's trajectory has arrived."""
        if (asked := self._asked.pop(task_id, None)) is not None:
            self._recent.append(now - asked.at)
            self._slow_in_a_row = 0

    def end(self, task_id: str, *, timed_out: bool) -> bool:
        """Forgets a task; tells whether it exceeded a limit shorter than the run's own."""
        asked = self._asked.pop(task_id, None)
        slow = timed_out and asked is not None and asked.limit < self._most
        self._slow_in_a_row += slow
        return slow
