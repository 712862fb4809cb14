"""Records of a federation's rounds: plain data, as the history shows it."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# One round must fit in a message: 10,000 records of 128 + 200 characters are 4 MB.
_MOST_UPDATES = 10_000
_MOST_REFUSALS, _MOST_REFUSALS_PER_NODE = 1_000, 20
LONGEST_MESSAGE = 200


class RoundState(enum.StrEnum):
    """State of a round."""

    COLLECTING = "collecting"
    AGGREGATED = "aggregated"
    ABANDONED = "abandoned"


class FederationState(enum.StrEnum):
    """State of a federation; all but the first are final."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A node was asked for an update; the nonce binds the answer to it."""

    node_id: str
    number: int
    round: int
    base_version: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Offer:
    """The claims of an update before its data is checked."""

    node_id: str
    round: int
    base_version: int
    nonce: str
    samples: int
    digest: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole update in the spool."""

    node_id: str
    round: int
    base_version: int
    nonce: str
    samples: int
    digest: str
    slot: int
    norm: float
    finite: bool
    # The digest of the spooled bytes, which differ from those sent when the update was compressed.
    stored_digest: str
    metrics: dict[str, float]

    @classmethod
    def of(cls, offer: Offer, **values: Any) -> "Answer":
        """An offer with what its data showed."""
        return cls(offer.node_id, offer.round, offer.base_version, offer.nonce, offer.samples, offer.digest, **values)


@dataclass(slots=True)
class UpdateRecord:
    """The result of one node's update."""

    node_id: str
    samples: int = 0
    norm: float = 0.0
    node_weight: float = 0.0
    counted_samples: int = 0
    refusal: str = ""
    message: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RoundRecord:
    """One round."""

    number: int
    base_version: int
    started: float
    state: RoundState = RoundState.COLLECTING
    seconds: float = 0.0
    policy_version: int = 0
    digest: str = ""
    # Why the round was abandoned.
    reason: str = ""
    updates: list[UpdateRecord] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    # How many updates the record does not list.
    unrecorded: int = 0
    # How many of `updates` are refusals that came one by one, by node.
    refusals: dict[str, int] = field(default_factory=dict)

    def takes(self, node_id: str) -> bool:
        """Whether one more refusal of a node is listed; there is a limit, so that refusals cannot fill the history."""
        total = sum(self.refusals.values())
        return total < _MOST_REFUSALS and self.refusals.get(node_id, 0) < _MOST_REFUSALS_PER_NODE

    def refuse(self, node_id: str, reason: str, message: str) -> None:
        """Adds a refusal; past a limit it is only counted."""
        if not self.takes(node_id):
            self.unrecorded += 1
            return
        self.refusals[node_id] = self.refusals.get(node_id, 0) + 1
        self.updates.append(UpdateRecord(node_id, refusal=reason, message=message[:LONGEST_MESSAGE]))

    def add(self, updates: Sequence[UpdateRecord]) -> None:
        """Adds the records of a round that closes; past a limit they are only counted."""
        room = max(0, _MOST_UPDATES - len(self.updates))
        self.updates.extend(updates[:room])
        self.unrecorded += max(0, len(updates) - room)

    def forget_updates(self) -> None:
        """Keeps only the number of updates."""
        self.unrecorded += len(self.updates)
        self.updates = []


@dataclass(frozen=True, slots=True)
class Counted:
    """An update that counts: its slot in the spool and its weight."""

    node_id: str
    slot: int
    weight: float
    norm: float
    # Factor that shortens an update with a long norm.
    scale: float = 1.0
    # Updates of one voter are one vote.
    voter: str = ""
