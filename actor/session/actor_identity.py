"""An actor's identity in the fleet, and its incarnation, which grows even if the clock is set back."""

from dataclasses import dataclass, field

from parlmesh.telemetry import get_logger

log = get_logger("parlmesh.actor")

LAST_INCARNATION = (1 << 63) - 1


@dataclass(slots=True)
class ActorIdentity:
    """An actor's identity in the fleet."""

    node_id: str
    actor_id: str
    incarnation: int
    from_clock: bool = field(default=False, compare=False)
    """Whether the incarnation may be raised, because the clock may have gone back."""
    _outlived: int = field(default=-1, compare=False)

    @property
    def at_learner(self) -> int:
        """The incarnation of its trajectories: a learner may remember a later start than the scheduler does."""
        return max(self.incarnation, self._outlived + 1)

    def outlive(self, newest: int) -> None:
        """The learner knows a later start, which is impossible: only this process gets rollouts under this name."""
        if self.from_clock and self.at_learner <= newest < LAST_INCARNATION:
            self._outlived = newest
            log.warning("clock_went_back", actor_id=self.actor_id, incarnation=self.incarnation, newest=newest)

    def succeed(self, newest: int) -> bool:
        """Moves past the newest start that others know; False if that is not needed, or the incarnation was set."""
        if not self.from_clock or newest <= self.incarnation:
            return False
        self.incarnation = newest + 1
        return True
