"""Unmasks a sum of masked updates with shares that nodes reveal. In memory only, for one round.

No single update is revealed: the masks of two nodes whose updates both arrived cancel in the sum and nowhere else.
"""

import hashlib
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.federation.secure.fixed_point import WORD, FixedPoint
from parlmesh.federation.secure.keys import PrivateKey, PublicKeys, list_digest, mask_key
from parlmesh.federation.secure.masks import MaskStream
from parlmesh.federation.secure.shamir import join, share_at
from parlmesh.types import Array

from ..rules.masked_round import MaskedRound
from ..updates.update_spool import Spool

_BLOCK = 1 << 17
# Sets of shares to try for one secret if the first is wrong: enough for a few liars among many.
_MOST_TRIES = 100


class Unmasking:
    """Collects what nodes reveal until every secret needed can be joined."""

    def __init__(
        self, federation_id: str, number: int, round_: MaskedRound, numbers: FixedPoint, survivors: Collection[str]
    ) -> None:
        self.number = number
        self.numbers = numbers
        self._round = round_
        self.survivors = sorted(survivors)
        self.dropped = sorted(set(round_.shares) - set(survivors))
        self._keys = {
            node: PublicKeys(bytes.fromhex(each.seal), bytes.fromhex(each.mask)) for node, each in round_.keys.items()
        }
        self._digest = list_digest(federation_id, number, round_.threshold, self._keys)
        self._places = {node: place for place, node in enumerate(sorted(round_.keys), 1)}
        self._answered: set[str] = set()
        self.liars: set[str] = set()
        """Nodes that revealed shares other than those they were given."""
        self._seeds: dict[str, dict[int, bytes]] = {node: {} for node in self.survivors}
        self._secrets: dict[str, dict[int, bytes]] = {node: {} for node in self.dropped}

    @property
    def answers(self) -> int:
        """Nodes that have answered."""
        return len(self._answered)

    @property
    def complete(self) -> bool:
        """Whether enough nodes have answered."""
        return len(self._answered) >= self._round.threshold

    def take(self, node: str, seeds: dict[str, bytes], keys: dict[str, bytes]) -> None:
        """Takes one node's answer; InvalidInput when it is not about the nodes that were asked about."""
        if set(seeds) != set(self.survivors) or set(keys) != set(self.dropped):
            raise InvalidInput("the revealed shares are not of the nodes that were asked about", reason="BAD_ANSWER")
        place = self._places[node]
        self._answered.add(node)
        for peer, share in seeds.items():
            self._seeds[peer][place] = share
        for peer, share in keys.items():
            self._secrets[peer][place] = share

    def agrees(self) -> bool:
        """Whether the first answers give every secret, so that no more are needed."""
        try:
            for node in self.survivors:
                self._check_seed(node, join(self._seeds[node], self._round.threshold))
            for node in self.dropped:
                self._check_key(node, join(self._secrets[node], self._round.threshold))
        except InvalidInput:
            return False
        return True

    def streams(self) -> tuple[list[MaskStream], list[MaskStream]]:
        """Masks to subtract from the sum, and masks to add to it; InvalidInput when too many shares were wrong."""
        take: list[MaskStream] = []
        add: list[MaskStream] = []
        for node in self.survivors:
            take.append(MaskStream(self._joined(node, self._seeds[node], self._check_seed)))
        for node in self.dropped:
            private = PrivateKey(self._joined(node, self._secrets[node], self._check_key))
            for peer in self.survivors:
                # Only the survivor's side of the pair is in the sum.
                stream = MaskStream(mask_key(private, self._keys[peer].mask, self._digest, node, peer))
                (take if peer < node else add).append(stream)
        return take, add

    def _joined(self, node: str, shares: Mapping[int, bytes], check: Callable[[str, bytes], None]) -> bytes:
        """The secret of a node. Enough right shares expose a few wrong ones, and the nodes that gave them."""
        threshold, lying = self._round.threshold, {self._places[liar] for liar in self.liars}
        honest = {place: share for place, share in sorted(shares.items()) if place not in lying}
        error: InvalidInput | None = None
        for places in islice(_choices(list(honest), threshold), _MOST_TRIES):
            chosen = {place: honest[place] for place in places}
            try:
                secret = join(chosen, threshold)
                check(node, secret)
            except InvalidInput as found:
                error = found
                continue
            if error is not None:
                wrong = {place for place, share in honest.items() if share_at(chosen, place) != share}
                self.liars |= {name for name, place in self._places.items() if place in wrong}
            return secret
        if error is None:
            # Too few shares: this raises.
            return join(honest, threshold)
        raise error

    def _check_seed(self, node: str, seed: bytes) -> None:
        if hashlib.sha256(seed).hexdigest() != self._round.shares[node].commitment:
            raise InvalidInput(f"shares of the seed of node {node} are wrong", reason="BAD_SHARE")

    def _check_key(self, node: str, secret: bytes) -> None:
        if PrivateKey(secret).public != self._keys[node].mask:
            raise InvalidInput(f"shares of the key of node {node} are wrong", reason="BAD_SHARE")


def _choices(places: list[int], count: int) -> Iterator[list[int]]:
    """Sets of `count` places: the first ones, then the next without each of these in turn, then random ones."""
    if len(places) < count:
        return
    yield places[:count]
    if len(places) == count:
        return
    for left_out in range(count):
        yield places[:left_out] + places[left_out + 1 : count + 1]
    # The choice need not be secret.
    rng = random.Random(len(places))  # noqa: S311
    while True:
        yield sorted(rng.sample(places, count))


class UnmaskedSum:
    """The weighted mean, block by block in order; it never shows a single node's update."""

    def __init__(self, unmasking: Unmasking, spool: Spool, slots: Sequence[int]) -> None:
        self._take, self._add = unmasking.streams()
        self._numbers, self._spool, self._slots = unmasking.numbers, spool, tuple(slots)
        self.weight = self._numbers.weight(self._total(0, 1), len(slots))

    @property
    def error(self) -> float:
        """Largest distance of a number from the true mean."""
        return self._numbers.error(len(self._slots), self.weight)

    def blocks(self, size: int) -> Iterator[tuple[int, int, Array]]:
        """Yields (start, stop, mean) over all numbers in order; call it once."""
        for start in range(0, size, _BLOCK):
            stop = min(start + _BLOCK, size)
            yield start, stop, self._numbers.mean(self._total(start + 1, stop + 1), self.weight)

    def _total(self, start: int, stop: int) -> Array:
        total, row = np.zeros(stop - start, WORD), np.empty(stop - start, WORD)
        for slot in self._slots:
            self._spool.read_into(slot, start, row)
            total += row
        for stream in self._take:
            stream.take_from(total)
        for stream in self._add:
            stream.add_to(total)
        return total
