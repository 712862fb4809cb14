"""What is held against those who send experience: trajectories that no honest actor sends, by sender and reason."""

from collections import Counter
from collections.abc import Mapping

from parlmesh.telemetry import get_logger

log = get_logger("parlmesh.learner")

# Whoever comes later is counted together: a sender that changes its name costs no memory.
_MOST_SENDERS = 200
_OTHERS = "others"
UNASKED = "UNASKED"
"""Reason of a trajectory that nobody asked its sender for."""


class Strikes:
    """Of one learner. Counted under the node where it is proven, else under the actor that the sender says it is."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}

    @property
    def counts(self) -> Mapping[str, Counter[str]]:
        """By sender and reason."""
        return dict(self._counts)

    def add(self, sender: str, reason: str, why: str) -> None:
        """One more; said in the log for the first, the second, the fourth and so on."""
        sender = sender[:128] if sender in self._counts or len(self._counts) < _MOST_SENDERS else _OTHERS
        counts = self._counts.setdefault(sender, Counter())
        counts[reason] += 1
        count = counts.total()
        if count & (count - 1) == 0:
            log.warning("strike", sender=sender, reason=reason, strikes=count, error=why)
