"""Which nonces were given out and which came back: they tell a late or replayed update from a foreign one."""

from collections import OrderedDict
from dataclasses import dataclass, field

from parlmesh.errors import FleetError

from .gate import refusal
from .records import Assignment, Offer
from .selection import nonce_for

_REMEMBERED = 20_000


@dataclass(slots=True)
class Nonces:
    """Remembers the newest; the same calls give the same nonces."""

    asked: OrderedDict[str, Assignment] = field(default_factory=OrderedDict)
    accepted: OrderedDict[str, None] = field(default_factory=OrderedDict)
    count: int = 0
    nodes: int = 0

    def assign(self, entropy: str, node_id: str, number: int, round_number: int, version: int) -> Assignment:
        """Asks a node; `number` is that of the node."""
        self.count += 1
        self.nodes = max(self.nodes, number)
        nonce = nonce_for(entropy, node_id, self.count)
        assignment = self.asked[nonce] = Assignment(node_id, number, round_number, version, nonce)
        self._forget(self.asked)
        return assignment

    def accept(self, nonce: str) -> None:
        """An update with it counts."""
        self.accepted[nonce] = None
        self._forget(self.accepted)

    def take_back(self, nonce: str) -> None:
        """The update is lost."""
        self.accepted.pop(nonce, None)

    def why_not(self, offer: Offer, present: int, *, in_round: bool) -> FleetError:
        """An update that is not waited for is replayed, late, or was never asked for."""
        asked = self.asked.get(offer.nonce)
        if asked is None or asked.node_id != offer.node_id or asked.round != offer.round:
            if offer.round != present:
                return refusal("WRONG_ROUND", f"the update is of round {offer.round}; the present one is {present}")
            if in_round:
                return refusal("WRONG_NONCE", f"the nonce is not that of node {offer.node_id} in round {offer.round}")
            return refusal("NOT_ASKED", f"node {offer.node_id} is not in round {present}")
        if offer.nonce in self.accepted:
            return refusal("REPLAYED", f"the update of round {offer.round} has been counted before")
        return refusal("LATE", f"round {offer.round} has closed; the present one is {present}")

    def _forget(self, remembered: "OrderedDict[str, Assignment] | OrderedDict[str, None]") -> None:
        while len(remembered) > max(_REMEMBERED, 4 * self.nodes):
            remembered.popitem(last=False)
