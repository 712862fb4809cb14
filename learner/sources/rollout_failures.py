"""Rollouts that fail: which actors rest for a while, and when the run must fail. Pure; the clock is passed in."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

# After this many failures of one actor in a row, others are asked, for this long.
_AVOIDED_AFTER = 3
_AVOIDED_SECONDS = 60.0
# An actor that held a rollout far longer than others is avoided immediately, and twice as long each time.
_LONGEST_REST_SECONDS = 3600.0
# At most this many actors are remembered as slow.
_MOST_SLOW = 1000
# Every actor fails once when a network drops out: only failures over a longer time are no accident.
_LEAST_SECONDS = 3.0
# A rollout that timed out cost a minute instead of milliseconds, so fewer of these are enough.
_MOST_TIMEOUTS = 3


@dataclass(slots=True)
class Failures:
    """Failures by actor since the last accepted trajectory."""

    most: int
    in_a_row: int = 0
    timeouts: int = 0
    _since: float = 0.0
    _by_actor: Counter[str] = field(default_factory=Counter)
    _last: dict[str, float] = field(default_factory=dict)
    _failed_now: set[str] = field(default_factory=set)
    _rests_until: dict[str, float] = field(default_factory=dict)
    _rest_seconds: dict[str, float] = field(default_factory=dict)

    def add(self, actor_id: str, now: float, *, timed_out: bool = False) -> None:
        """A rollout failed on this actor, or did not end in time."""
        if not self.in_a_row:
            self._since = now
        self.in_a_row += 1
        self.timeouts += timed_out
        self._by_actor[actor_id] += 1
        self._last[actor_id] = now
        self._failed_now.add(actor_id)

    def rest(self, actor_id: str, now: float) -> None:
        """A rollout took far too long on this actor. This is no failure, and one trajectory does not end the rest."""
        if self._rests_until.get(actor_id, 0.0) > now:
            return
        seconds = min(2.0 * self._rest_seconds.pop(actor_id, _AVOIDED_SECONDS / 2.0), _LONGEST_REST_SECONDS)
        self._rest_seconds[actor_id] = seconds
        self._rests_until[actor_id] = now + seconds
        if len(self._rest_seconds) > _MOST_SLOW:
            oldest = next(iter(self._rest_seconds))
            del self._rest_seconds[oldest], self._rests_until[oldest]

    def forgive(self, actor_id: str) -> None:
        """A trajectory from this actor was accepted."""
        if self.in_a_row:
            self.in_a_row = self.timeouts = 0
            self._failed_now.clear()
        if self._by_actor:
            self._by_actor.pop(actor_id, None)
            self._last.pop(actor_id, None)

    def avoided(self, now: float) -> frozenset[str]:
        """Actors to avoid for now; each gets another chance after a while."""
        for actor_id in [each for each, last in self._last.items() if now - last >= _AVOIDED_SECONDS]:
            del self._by_actor[actor_id], self._last[actor_id]
        resting = [each for each, until in self._rests_until.items() if until > now]
        return frozenset(resting).union(each for each, count in self._by_actor.items() if count >= _AVOIDED_AFTER)

    def hopeless(self, actors: Collection[str], now: float) -> bool:
        """Whether too many rollouts failed in a row, on all of the `actors`."""
        many = self.in_a_row >= self.most or self.timeouts >= min(self.most, _MOST_TIMEOUTS)
        return many and now - self._since >= _LEAST_SECONDS and self._failed_now.issuperset(actors)
