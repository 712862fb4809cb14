"""Rate limits: one token bucket per name, refilled over time. Pure; the clock is passed in."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

BURST_SECONDS = 10.0
"""A bucket holds this many seconds' worth of tokens."""
MOST_NAMES = 10_000

Name = TypeVar("Name", bound=Hashable)


class Rates(Generic[Name]):
    """A bucket per name. The name that took least recently is forgotten first; its next bucket starts full."""

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._most = max(1.0, per_second * BURST_SECONDS)
        self._buckets: OrderedDict[Name, tuple[float, float]] = OrderedDict()

    def wait(self, name: Name, now: float, amount: float = 1.0) -> float:
        """Seconds until `amount` may be taken; 0 = now. An amount larger than the bucket only needs a full bucket."""
        return max(0.0, (min(amount, self._most) - self._level(name, now)) / self._rate)

    def take(self, name: Name, now: float, amount: float = 1.0) -> None:
        """Takes `amount`, or as much as the bucket holds."""
        level = self._level(name, now)
        self._buckets.pop(name, None)
        self._buckets[name] = (max(0.0, level - amount), now)
        if len(self._buckets) > MOST_NAMES:
            self._buckets.popitem(last=False)

    def _level(self, name: Name, now: float) -> float:
        level, since = self._buckets.get(name, (self._most, now))
        return min(self._most, level + max(0.0, now - since) * self._rate)
