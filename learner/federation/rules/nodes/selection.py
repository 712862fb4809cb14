"""Which nodes a round asks, and the nonces that tell their answers from late, replayed and foreign ones.

Pure: the same seed, round and nodes give the same choice.
"""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from parlmesh.errors import FleetError
from parlmesh.federation.config import SelectionConfig

from ..records import Assignment, Offer
from ..update_checks import refusal


def select(
    nodes: Sequence[str], config: SelectionConfig, seed: int, number: int, most: int = 0
) -> tuple[tuple[str, ...], int]:
    """The nodes to ask, sorted, at most `most` of them (0 = any number), and how many of their updates are wanted."""
    ordered = sorted(nodes)
    wanted = config.wanted(len(ordered))
    asked = min(len(ordered), math.ceil(wanted * config.over_selection - 1e-9))
    if most:
        asked, wanted = min(asked, most), min(wanted, most)
    if asked == len(ordered):
        return tuple(ordered), wanted
    chosen = np.random.default_rng([seed, number]).choice(len(ordered), asked, replace=False)
    return tuple(ordered[index] for index in sorted(chosen)), wanted


def nonce_for(entropy: str, node_id: str, count: int) -> str:
    """32 hexadecimal digits that cannot be guessed without the entropy."""
    return hashlib.sha256(f"{entropy}/{count}/{node_id}".encode()).hexdigest()[:32]


_REMEMBERED = 20_000


@dataclass(slots=True)
class Nonces:
    """Remembers the newest nonces; the same calls give the same ones."""

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
        """Records that an update with this nonce counts."""
        self.accepted[nonce] = None
        self._forget(self.accepted)

    def take_back(self, nonce: str) -> None:
        """Records that the update with this nonce is lost."""
        self.accepted.pop(nonce, None)

    def why_not(self, offer: Offer, present: int, *, in_round: bool) -> FleetError:
        """Says why an update is not waited for: it is replayed or late, or was never asked for."""
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
