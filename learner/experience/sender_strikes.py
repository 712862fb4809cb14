"""Strikes against senders of experience: trajectories that no honest actor sends, by sender and reason."""

from collections import Counter
from collections.abc import Mapping

from parlmesh.telemetry import get_logger

log = get_logger("parlmesh.learner")

# Later senders are counted together, so that one that keeps changing its name costs no memory.
_MOST_SENDERS = 200
_OTHERS = "others"
UNASKED = "UNASKED"
"""Reason for a trajectory that its sender was not asked for."""


class Strikes:
    """Strikes of one learner, counted by node where that is proven, otherwise by the actor the sender claims to be."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}

    @property
    def counts(self) -> Mapping[str, Counter[str]]:
        """Counts by sender and reason."""
        return dict(self._counts)

    def add(self, sender: str, reason: str, why: str) -> None:
        """Adds a strike; the log gets a sender's first, second, fourth and so on."""
        sender = sender[:128] if sender in self._counts or len(self._counts) < _MOST_SENDERS else _OTHERS
        counts = self._counts.setdefault(sender, Counter())
        counts[reason] += 1
        count = counts.total()
        if count & (count - 1) == 0:
            log.warning("strike", sender=sender, reason=reason, strikes=count, error=why)
