"""What a quarantine does to the actors of a node. Part of the core: no I/O."""

from parlmesh.telemetry import get_logger

from .actions import Standing
from .lifecycle import Lifecycle
from .placement import Actor
from .strikes import Quarantine, Strikes

log = get_logger("parlmesh.scheduler")


class Confinement:
    """Counts bad answers, takes everything from a node that gave too many, and lets it in again.

    `unsettled` takes the actors whose room has changed.
    """

    def __init__(self, life: Lifecycle, unsettled: dict[Actor, None]) -> None:
        self._life = life
        self._unsettled = unsettled
        self.strikes = Strikes(life.config.strikes)

    def strike(self, node_id: str, reason: str, now: float) -> None:
        """One bad answer of a node."""
        log.warning("strike", node_id=node_id, reason=reason, strikes=self.strikes.count(node_id) + 1)
        confined = node_id in self.strikes.quarantines
        if self.strikes.add(node_id, reason, now):
            self._take_all(node_id, now)
        if not confined:
            # What it does in quarantine changes nothing, and is not worth a record each time.
            self._note(node_id)

    def confine(self, node_id: str, reason: str, now: float) -> None:
        """Puts a node in quarantine."""
        self.strikes.confine(node_id, reason, now)
        self._take_all(node_id, now)
        self._note(node_id)

    def restore(self, standing: Standing, now: float) -> None:
        """What a journal says. Its clock may have jumped: nothing is in the future, and no quarantine is too long."""
        offset = self._life.journal_offset
        latest = now + self._life.config.strikes.quarantine_seconds
        quarantine = Quarantine(standing.reason, min(latest, standing.until - offset)) if standing.until else None
        times = [min(now, time - offset) for time in standing.strikes]
        self.strikes.restore(standing.node_id, times, quarantine)

    def release(self, node_id: str) -> None:
        """Forgives a node."""
        confined = node_id in self.strikes.quarantines
        if confined:
            log.info("node_released", node_id=node_id)
        struck = confined or self.strikes.count(node_id)
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
        """An actor that just connected."""
        actor.quarantined = actor.node_id in self.strikes.quarantines

    def _note(self, node_id: str) -> None:
        reason, until = self.strikes.quarantines.get(node_id, ("", 0.0))
        self._life.judge(node_id, self.strikes.times(node_id), until, reason)

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
