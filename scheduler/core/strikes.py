"""Bad answers, counted against the nodes they came from, and the quarantine of a node that gave too many. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..config import StrikeConfig

# So many nodes are remembered; the one whose last strike is the oldest is forgotten first.
MAX_NODES = 10_000


class Quarantine(NamedTuple):
    """Why a node gets nothing, and until when."""

    reason: str
    until: float


class Strikes:
    """Who was struck how often, and who is in quarantine."""

    def __init__(self, config: StrikeConfig) -> None:
        self._config = config
        self._times: dict[str, list[float]] = {}
        self.quarantines: dict[str, Quarantine] = {}
        self.total = 0

    def add(self, node_id: str, reason: str, now: float) -> bool:
        """One bad answer; whether the node is in quarantine for it from now on."""
        self.total += 1
        times = [time for time in self._times.pop(node_id, ()) if time > now - self._config.window_seconds]
        times.append(now)
        limit = self._config.limit
        if limit and len(times) >= limit and node_id not in self.quarantines:
            plural = "s" if len(times) > 1 else ""
            self.confine(node_id, f"{len(times)} strike{plural}, the last: {reason}", now)
            return True
        self._times[node_id] = times[-(limit or 1) :]
        _trim(self._times)
        return False

    def confine(self, node_id: str, reason: str, now: float) -> None:
        self.quarantines.pop(node_id, None)
        self.quarantines[node_id] = Quarantine(reason, now + self._config.quarantine_seconds)
        _trim(self.quarantines)

    def forgive(self, node_id: str) -> None:
        self._times.pop(node_id, None)
        self.quarantines.pop(node_id, None)

    def restore(self, node_id: str, times: Iterable[float], quarantine: Quarantine | None) -> None:
        """As it was before a restart."""
        if quarantine is not None:
            self.quarantines[node_id] = quarantine
        else:
            self._times[node_id] = list(times)

    @property
    def nodes(self) -> Iterable[str]:
        """All that are remembered."""
        return self._times

    def times(self, node_id: str) -> Sequence[float]:
        return self._times.get(node_id, ())

    def count(self, node_id: str) -> int:
        return len(self.times(node_id))

    def over(self, now: float) -> Iterable[str]:
        """Nodes whose quarantine has ended."""
        return [node_id for node_id, quarantine in self.quarantines.items() if now >= quarantine.until]


def _trim(nodes: dict[str, list[float]] | dict[str, Quarantine]) -> None:
    if len(nodes) > MAX_NODES:
        del nodes[next(iter(nodes))]
