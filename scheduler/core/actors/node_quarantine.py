"""Bad answers, counted against the nodes they came from, and the quarantine of a node that gave too many.

Part of the core: no I/O.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from parlmesh.telemetry import get_logger

from ...config import StrikeConfig
from ..actions import NodeRecord
from ..lifecycle import Lifecycle
from .placement import Actor

# Nodes remembered; the one whose last strike is oldest is forgotten first.
MAX_NODES = 10_000


class Quarantine(NamedTuple):
    """Why a node gets no tasks, and until when."""

    reason: str
    until: float


class Strikes:
    """How many strikes each node has, and which nodes are in quarantine."""

    def __init__(self, config: StrikeConfig) -> None:
        self._config = config
        self._times: dict[str, list[float]] = {}
        self.quarantines: dict[str, Quarantine] = {}
        self.total = 0

    def add(self, node_id: str, reason: str, now: float) -> bool:
        """Counts a bad answer; returns whether it put the node in quarantine."""
        self.total += 1
        times = [*self._counting(node_id, now), now]
        self._times.pop(node_id, None)
        limit = self._config.limit
        if limit and len(times) >= limit and node_id not in self.quarantines:
            plural = "s" if len(times) > 1 else ""
            self.quarantine(node_id, f"{len(times)} strike{plural}, the last: {reason}", now)
            return True
        self._times[node_id] = times[-(limit or 1) :]
        _trim(self._times)
        return False

    def quarantine(self, node_id: str, reason: str, now: float) -> None:
        self.quarantines.pop(node_id, None)
        self.quarantines[node_id] = Quarantine(reason, now + self._config.quarantine_seconds)
        _trim(self.quarantines)

    def forgive(self, node_id: str) -> None:
        self._times.pop(node_id, None)
        self.quarantines.pop(node_id, None)

    def restore(self, node_id: str, times: Iterable[float], quarantine: Quarantine | None) -> None:
        """Restores the strikes and quarantines from before a restart."""
        if quarantine is not None:
            self.quarantines[node_id] = quarantine
        else:
            self._times[node_id] = list(times)

    @property
    def nodes(self) -> Iterable[str]:
        """All nodes with remembered strikes."""
        return self._times

    def times(self, node_id: str) -> Sequence[float]:
        """Of all remembered strikes, also of those that no longer count."""
        return self._times.get(node_id, ())

    def count(self, node_id: str, now: float) -> int:
        """How many strikes count."""
        return len(self._counting(node_id, now))

    def _counting(self, node_id: str, now: float) -> list[float]:
        return [time for time in self.times(node_id) if time > now - self._config.window_seconds]

    def over(self, now: float) -> Iterable[str]:
        """Nodes whose quarantine has ended."""
        return [node_id for node_id, quarantine in self.quarantines.items() if now >= quarantine.until]


def _trim(nodes: dict[str, list[float]] | dict[str, Quarantine]) -> None:
    if len(nodes) > MAX_NODES:
        del nodes[next(iter(nodes))]


log = get_logger("parlmesh.scheduler")


class NodeQuarantine:
    """Counts bad answers, takes all tasks from a node that gave too many, and ends its quarantine.

    `unsettled` takes the actors whose room has changed.
    """

    def __init__(self, life: Lifecycle, unsettled: dict[Actor, None]) -> None:
        self._life = life
        self._unsettled = unsettled
        self.strikes = Strikes(life.config.strikes)

    def strike(self, node_id: str, reason: str, now: float) -> None:
        """Counts a bad answer of a node."""
        log.warning("strike", node_id=node_id, reason=reason, strikes=self.strikes.count(node_id, now) + 1)
        quarantined = node_id in self.strikes.quarantines
        if self.strikes.add(node_id, reason, now):
            self._take_all(node_id, now)
        if not quarantined:
            # Strikes in quarantine change nothing, and are not worth a record each.
            self._note(node_id)

    def quarantine(self, node_id: str, reason: str, now: float) -> None:
        """Puts a node in quarantine."""
        self.strikes.quarantine(node_id, reason, now)
        self._take_all(node_id, now)
        self._note(node_id)

    def restore(self, record: NodeRecord, now: float) -> None:
        """Takes a journal's record. Its clock may have jumped, so future times and overlong quarantines are cut."""
        offset = self._life.journal_offset
        latest = now + self._life.config.strikes.quarantine_seconds
        quarantine = Quarantine(record.reason, min(latest, record.until - offset)) if record.until else None
        times = [min(now, time - offset) for time in record.strikes]
        self.strikes.restore(record.node_id, times, quarantine)

    def release(self, node_id: str) -> None:
        """Forgives a node."""
        quarantined = node_id in self.strikes.quarantines
        if quarantined:
            log.info("node_released", node_id=node_id)
        struck = quarantined or self.strikes.times(node_id)
        self.strikes.forgive(node_id)
        if struck:
            self._note(node_id)
        for actor in self._actors_of(node_id):
            actor.quarantined = False
            self._unsettled[actor] = None

    def expire(self, now: float) -> None:
        for node_id in self.strikes.over(now):
            self.release(node_id)

    def apply_to(self, actor: Actor) -> None:
        """Sets whether an actor that just connected is in quarantine."""
        actor.quarantined = actor.node_id in self.strikes.quarantines

    def _note(self, node_id: str) -> None:
        reason, until = self.strikes.quarantines.get(node_id, ("", 0.0))
        offset = self._life.journal_offset
        times = tuple(time + offset for time in self.strikes.times(node_id))
        self._life.roster.judge(NodeRecord(node_id, times, until + offset if until else 0.0, reason))

    def _take_all(self, node_id: str, now: float) -> None:
        log.warning("node_quarantined", node_id=node_id, reason=self.strikes.quarantines[node_id].reason)
        for actor in self._actors_of(node_id):
            actor.quarantined = True
            for task in list(actor.leases.values()):
                self._life.revoke(actor, task.lease)
                self._life.take_back(task, now)
            self._unsettled[actor] = None

    def _actors_of(self, node_id: str) -> list[Actor]:
        return [actor for actor in self._life.fleet.actors.values() if actor.node_id == node_id]
