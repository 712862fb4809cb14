"""A node's part in a secure sum (Bonawitz et al. 2017): keys, shares of its secrets, a masked update, and unmasking.

A node never changes an answer once given. For each peer it reveals a share of either the seed or the mask key, never
both: because the threshold is above half of the nodes, a learner that tells nodes different lists gets too few shares
of one kind. Pure: randomness is passed in.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.federation.secure.accusation import accuse
from parlmesh.federation.secure.fixed_point import MOST_NODES
from parlmesh.federation.secure.keys import PrivateKey, PublicKeys, list_digest, mask_key, seal, sealing_key, unseal
from parlmesh.federation.secure.masks import MaskStream
from parlmesh.federation.secure.shamir import SECRET_BYTES, SHARE_BYTES, RandomBytes, split
from parlmesh.types import Array

FEWEST_NODES = 3


@dataclass(frozen=True, slots=True)
class SealedShares:
    """For each peer, a share of the seed and one of the mask key; the commitment exposes a wrong seed."""

    commitment: bytes
    by_peer: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Revealed:
    """Seed shares of the nodes whose updates came, and mask key shares of the nodes whose updates did not."""

    seeds: Mapping[str, bytes]
    keys: Mapping[str, bytes]


class Masking:
    """One node in one round, from its keys to its part in the unmasking."""

    def __init__(self, federation_id: str, round_number: int, node_id: str, random_bytes: RandomBytes) -> None:
        self._federation_id, self._round, self._node_id = federation_id, round_number, node_id
        self._random = random_bytes
        seal_secret, self._mask_secret, self._seed = (random_bytes(SECRET_BYTES) for _ in range(3))
        self._seal_key, self._mask_key = PrivateKey(seal_secret), PrivateKey(self._mask_secret)
        self.keys = PublicKeys(self._seal_key.public, self._mask_key.public)
        self._digest = b""
        self._threshold = 0
        self._peers: dict[str, PublicKeys] = {}
        self._own_share = b""
        self._sent: SealedShares | None = None
        # By the node they are from: a share of its seed and one of its mask key.
        self._shares: dict[str, tuple[bytes, bytes]] = {}
        self._survivors: frozenset[str] = frozenset()
        self.masked: Array | None = None
        """The masked update, which is sent; None until it is made."""

    @property
    def summed(self) -> int:
        """Nodes whose masks are in the update."""
        return len(self._shares)

    @property
    def threshold(self) -> int:
        """Fewest updates in a sum that this node helps to unmask."""
        return self._threshold

    def shares(self, keys: Mapping[str, PublicKeys], threshold: int) -> SealedShares:
        """Shares for all nodes on the list, which must contain this node's own keys."""
        self._check_list(keys, threshold)
        digest = list_digest(self._federation_id, self._round, threshold, keys)
        if self._sent is not None:
            if digest != self._digest:
                raise _refusal("another list of nodes was answered before")
            return self._sent
        nodes = sorted(keys)
        seeds = split(self._seed, threshold, len(nodes), self._random)
        secrets = split(self._mask_secret, threshold, len(nodes), self._random)
        sealed: dict[str, bytes] = {}
        for node, seed, secret in zip(nodes, seeds, secrets, strict=True):
            if node == self._node_id:
                self._own_share = seed + secret
                continue
            key = sealing_key(self._seal_key, keys[node].seal, digest, self._node_id, node)
            sealed[node] = seal(key, seed + secret, self._random)
        self._digest, self._threshold, self._peers = digest, threshold, dict(keys)
        self._sent = SealedShares(hashlib.sha256(self._seed).digest(), sealed)
        return self._sent

    def accept(self, sealed: Mapping[str, bytes]) -> None:
        """Takes the peers' shares for this node; a peer without a share is not in the sum."""
        if self._sent is None:
            raise _refusal("shares came before the list of nodes")
        givers = {*sealed, self._node_id}
        if self._shares:
            if givers != set(self._shares):
                raise _refusal("shares of other nodes were accepted before")
            return
        if self._node_id in sealed or not givers <= set(self._peers):
            raise _refusal("shares came from nodes that are not on the list")
        if len(givers) < self._threshold:
            raise _refusal(f"shares of {len(givers)} nodes came; the threshold is {self._threshold}")
        opened = {self._node_id: self._own_share}
        for node, box in sealed.items():
            key = sealing_key(self._seal_key, self._peers[node].seal, self._digest, node, self._node_id)
            try:
                opened[node] = unseal(key, box)
            except InvalidInput as error:
                raise _refusal(accuse(node)) from error
            if len(opened[node]) != 2 * SHARE_BYTES:
                raise _refusal(accuse(node))
        self._shares = {node: (both[:SHARE_BYTES], both[SHARE_BYTES:]) for node, both in opened.items()}

    def mask(self, words: Array) -> Array:
        """Adds all masks, in place. Once only: two updates under the same masks would reveal their difference."""
        if not self._shares:
            raise _refusal("an update cannot be masked before the peers' shares are here")
        if self.masked is not None:
            raise _refusal("an update was masked before")
        MaskStream(self._seed).add_to(words)
        for peer in sorted(self._shares):
            if peer != self._node_id:
                key = mask_key(self._mask_key, self._peers[peer].mask, self._digest, self._node_id, peer)
                stream = MaskStream(key)
                # The two nodes of a pair apply the same mask with opposite signs.
                (stream.add_to if self._node_id < peer else stream.take_from)(words)
        self.masked = words
        return words

    def reveal(self, survivors: Collection[str]) -> Revealed:
        """The shares that the learner needs to unmask the sum of these nodes' updates, and no other."""
        if self.masked is None:
            raise _refusal("no update was masked here")
        named = frozenset(survivors)
        if self._survivors and named != self._survivors:
            raise _refusal("another list of updates was answered before")
        if not named <= set(self._shares) or self._node_id not in named:
            raise _refusal("the list of updates has nodes that are not in the sum, or lacks this one")
        if len(named) < self._threshold:
            raise _refusal(f"the sum is of {len(named)} updates; the threshold is {self._threshold}")
        self._survivors = named
        dropped = set(self._shares) - named
        return Revealed(
            {node: self._shares[node][0] for node in sorted(named)},
            {node: self._shares[node][1] for node in sorted(dropped)},
        )

    def _check_list(self, keys: Mapping[str, PublicKeys], threshold: int) -> None:
        count = len(keys)
        if keys.get(self._node_id) != self.keys:
            raise _refusal("the list of nodes does not have this one's keys")
        if not FEWEST_NODES <= count <= MOST_NODES:
            raise _refusal(f"a secure sum must be of {FEWEST_NODES} to {MOST_NODES} nodes, the list has {count}")
        if not count < 2 * threshold <= 2 * count:
            raise _refusal(f"the threshold of {count} nodes must be {count // 2 + 1} to {count}, got {threshold}")
        if len({each for pair in keys.values() for each in (pair.seal, pair.mask)}) != 2 * count:
            raise _refusal("two nodes of the list have the same key")


def _refusal(message: str) -> FailedPrecondition:
    return FailedPrecondition(message, reason="SECURE_SUM")
