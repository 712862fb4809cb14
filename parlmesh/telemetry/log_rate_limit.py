"""Limits how often the same event is logged, so that a caller who causes log lines cannot fill the disk."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

LEFT_OUT = "log_lines_left_out"

_SUMMARY_SECONDS = 10.0
_MOST_EVENTS = 1000


class Allowance(NamedTuple):
    """A burst of lines, then a steady rate per second."""

    burst: float
    per_second: float


USUAL = Allowance(burst=1000, per_second=50)
BY_EVENT: Mapping[str, Allowance] = {"call_refused": Allowance(burst=100, per_second=5)}


class LineLimit(logging.Filter):
    """Passes lines within the allowance of their event; regularly logs how many were left out, by event."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._left: dict[str, tuple[float, float]] = {}
        self._omitted: Counter[str] = Counter()
        self._told = monotonic()

    def filter(self, record: logging.LogRecord) -> bool:
        event, now = record.getMessage(), self._monotonic()
        if event == LEFT_OUT:
            return True
        passes = self._take(event, now)
        if not passes:
            self._omitted[event] += 1
        if self._omitted and now - self._told >= _SUMMARY_SECONDS:
            self.tell()
        return passes

    def tell(self) -> None:
        """Logs the number of lines left out since the last summary, if any."""
        omitted, self._omitted = dict(self._omitted), Counter()
        self._told = self._monotonic()
        if omitted:
            extra = {"parlmesh_fields": {"lines": sum(omitted.values()), "by_event": omitted}}
            logging.getLogger("parlmesh.telemetry").warning(LEFT_OUT, extra=extra)

    def _take(self, event: str, now: float) -> bool:
        allowance = BY_EVENT.get(event, USUAL)
        left, since = self._left.pop(event, (allowance.burst, now))
        left = min(allowance.burst, left + (now - since) * allowance.per_second)
        passes = left >= 1.0
        self._left[event] = (left - 1.0 if passes else left, now)
        if len(self._left) > _MOST_EVENTS:
            # Libraries log sentences that differ every time; the oldest is the least likely to recur.
            del self._left[next(iter(self._left))]
        return passes
