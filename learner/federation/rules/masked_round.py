"""The data of a secure round's nodes before they train: keys, then sealed shares. Pure, nothing secret.

keys -> shares -> (collecting) -> (unmasking). A node that does not answer one step is not in the next.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from parlmesh.federation.config import SecureConfig
from parlmesh.federation.secure.accusation import accused_in

from .nodes.participants import Participants
from .records import Assignment

KEYS, SHARES, REVEAL = "keys", "shares", "reveal"


@dataclass(frozen=True, slots=True)
class NodeKeys:
    """A node's public keys, in hexadecimal digits."""

    seal: str
    mask: str


@dataclass(frozen=True, slots=True)
class NodeShares:
    """A node's sealed shares for each of the others, in hexadecimal digits."""

    commitment: str
    sealed: dict[str, str]


@dataclass(slots=True)
class MaskedRound:
    """One round. `threshold` is set when the list of nodes is closed."""

    step: str = KEYS
    threshold: int = 0
    keys: dict[str, NodeKeys] = field(default_factory=dict)
    shares: dict[str, NodeShares] = field(default_factory=dict)

    @property
    def answered(self) -> "Mapping[str, NodeKeys | NodeShares]":
        """Nodes that have answered the present step."""
        return self.keys if self.step == KEYS else self.shares

    def take(self, node: str, answer: NodeKeys | NodeShares) -> None:
        """A node's answer to the present step; any other is late."""
        if self.step == KEYS and isinstance(answer, NodeKeys):
            self.keys.setdefault(node, answer)
        elif self.step == SHARES and isinstance(answer, NodeShares) and node in self.keys:
            self.shares.setdefault(node, answer)

    def silent(self, participants: Participants) -> tuple[Assignment, ...]:
        """Assignments whose nodes have neither answered the present step nor failed."""
        known = (*participants.failed, *self.answered)
        return tuple(each for node, each in participants.assignments.items() if node not in known)

    def ask_shares(self, config: SecureConfig) -> None:
        """Closes the list of nodes and starts the next step."""
        self.step, self.threshold = SHARES, config.staying(len(self.keys))

    def sealed_for(self, node: str) -> dict[str, str]:
        """The other nodes' shares for a node, by sender."""
        return {giver: given.sealed[node] for giver, given in self.shares.items() if giver != node}

    def accused(self, failed: Mapping[str, str]) -> list[str]:
        """Nodes whose shares more than half of the nodes say they cannot open. Fewer accusers may be lying."""
        accusers = Counter(accused_in(why) for node, why in failed.items() if node in self.shares)
        return [node for node, count in accusers.items() if node in self.shares and 2 * count > len(self.shares)]
