"""The protocol from end to end, without a wire: nodes as actors are, the sum as the learner makes it."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actor.federation.masking import Masking
from learner.federation.masking.unmasking import UnmaskedSum, Unmasking
from learner.federation.rules.masked_round import MaskedRound, NodeKeys, NodeShares
from learner.federation.updates.update_spool import Spool
from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.federation.aggregators import joint_update, mean
from parlmesh.federation.config import SecureConfig
from parlmesh.federation.secure.fixed_point import FixedPoint
from parlmesh.federation.secure.keys import PublicKeys
from parlmesh.federation.update_blocks import MemoryUpdates

SIZE = 60


class Play:
    """One round of named nodes; each step is for those that are still there."""

    def __init__(self, folder, count=10, seed=0, threshold=0.6):
        self.rng = random.Random(seed)
        names = [f"n{k:02d}" for k in range(count)]
        self.nodes = {name: Masking("f", 7, name, self.rng.randbytes) for name in names}
        self.round = MaskedRound()
        self.config = SecureConfig(enabled=True, threshold=threshold)
        numbers = np.random.default_rng(seed)
        self.vectors = {name: numbers.uniform(-1, 1, SIZE).astype(np.float32) for name in names}
        self.samples = {name: int(numbers.integers(1, 100)) for name in names}
        self.spool = Spool(folder / "spool", SIZE + 1)

    @property
    def numbers(self):
        return FixedPoint(len(self.round.shares), 1.0, 100)

    def public(self):
        return {n: PublicKeys(bytes.fromhex(k.seal), bytes.fromhex(k.mask)) for n, k in self.round.keys.items()}

    def keys(self, names):
        for name in names:
            keys = self.nodes[name].keys
            self.round.take(name, NodeKeys(keys.seal.hex(), keys.mask.hex()))
        self.round.ask_shares(self.config)

    def shares(self, names):
        for name in names:
            given_ = self.nodes[name].shares(self.public(), self.round.threshold)
            sealed = {peer: box.hex() for peer, box in given_.by_peer.items()}
            self.round.take(name, NodeShares(given_.commitment.hex(), sealed))

    def accept(self, name):
        self.nodes[name].accept({peer: bytes.fromhex(box) for peer, box in self.round.sealed_for(name).items()})

    def mask(self, names):
        for slot, name in enumerate(names):
            self.accept(name)
            words = self.nodes[name].mask(self.numbers.words(self.vectors[name], self.samples[name]))
            self.spool.write(slot, 0, words.tobytes())
        self.survivors = list(names)

    def reveal(self, names):
        self.unmasking = Unmasking("f", 7, self.round, self.numbers, self.survivors)
        for name in names:
            revealed = self.nodes[name].reveal(self.survivors)
            self.unmasking.take(name, dict(revealed.seeds), dict(revealed.keys))

    def sum(self):
        total = UnmaskedSum(self.unmasking, self.spool, range(len(self.survivors)))
        return total, np.concatenate([block for _, _, block in total.blocks(SIZE)])

    def plain(self):
        updates = MemoryUpdates({name: self.vectors[name] for name in self.survivors})
        return joint_update(updates, mean([float(self.samples[name]) for name in sorted(self.survivors)]))


@given(st.integers(3, 12), st.integers(0, 2**32 - 1), st.data())
@settings(max_examples=10, deadline=None)
def test_the_sum_is_fedavgs_whoever_drops_out_and_when(tmp_path_factory, count, seed, data):
    play = Play(tmp_path_factory.mktemp("play"), count, seed)
    here = list(play.nodes)
    for step in (play.keys, play.shares, play.mask, play.reveal):
        fewest = max(3, play.round.threshold)
        leaving = data.draw(st.integers(0, max(0, len(here) - fewest)))
        here = sorted(play.rng.sample(here, len(here) - leaving))
        step(here)
    total, found = play.sum()
    assert total.weight == sum(play.samples[name] for name in play.survivors)
    assert np.abs(found - play.plain()).max() <= total.error * (1 + 1e-6)


def whole(play, revealing=10):
    names = list(play.nodes)
    play.keys(names)
    play.shares(names)
    play.mask(names[:7])
    play.reveal(names[: min(revealing, 7)])


def test_fewer_than_the_threshold_do_not_unmask_the_sum(tmp_path):
    play = Play(tmp_path)
    whole(play, revealing=5)
    assert not play.unmasking.complete
    with pytest.raises(InvalidInput, match="needs 6 shares, got 5"):
        play.sum()


def test_a_masked_update_is_not_the_update_even_for_who_knows_all_that_is_revealed(tmp_path):
    play = Play(tmp_path)
    whole(play)
    take, _ = play.unmasking.streams()
    name = play.survivors[0]
    masked = play.nodes[name].masked
    assert masked is not None
    words = masked.copy()
    plain = play.numbers.words(play.vectors[name], play.samples[name])
    assert not (words == plain).any()
    # Its own seed is revealed; the masks with the others who stayed are not.
    take[0].take_from(words)
    assert not (words == plain).any()


def test_a_node_answers_for_one_list_of_updates_only(tmp_path):
    play = Play(tmp_path)
    whole(play)
    node, names = play.nodes["n00"], list(play.nodes)
    first = node.reveal(names[:7])
    assert node.reveal(names[:7]) == first
    assert not set(first.seeds) & set(first.keys)
    # Were it answered, a share of n06's key would follow the one of its seed.
    with pytest.raises(FailedPrecondition, match="another list of updates was answered before"):
        node.reveal(names[:6])


def test_a_learner_that_splits_the_nodes_gets_too_few_shares_of_both_kinds(tmp_path):
    play = Play(tmp_path)
    names = list(play.nodes)
    play.keys(names)
    play.shares(names)
    play.mask(names)
    kinds = {"seeds": 0, "keys": 0}
    for index, name in enumerate(names):
        # Half of them are told that n09's update came, the others that it did not.
        revealed = play.nodes[name].reveal(names if index % 2 or name == "n09" else names[:9])
        kinds["seeds" if "n09" in revealed.seeds else "keys"] += 1
    assert min(kinds.values()) < play.round.threshold


def test_lists_that_would_give_a_node_away_are_refused(tmp_path):
    play = Play(tmp_path)
    play.keys(list(play.nodes))
    node, public = play.nodes["n00"], play.public()
    refused = [
        (dict(list(public.items())[:2]), 2, "must be of 3 to 200 nodes"),
        (public, 5, "the threshold of 10 nodes must be 6 to 10, got 5"),
        (public, 11, "the threshold of 10 nodes must be 6 to 10, got 11"),
        ({**public, "n00": public["n01"]}, 6, "does not have this one's keys"),
        ({**public, "n02": public["n01"]}, 6, "two nodes of the list have the same key"),
    ]
    for keys, threshold, sentence in refused:
        with pytest.raises(FailedPrecondition, match=sentence):
            node.shares(keys, threshold)
    node.shares(public, 6)
    with pytest.raises(FailedPrecondition, match="another list of nodes was answered before"):
        node.shares({name: keys for name, keys in public.items() if name != "n09"}, 6)


def test_nodes_that_were_shown_different_lists_share_nothing(tmp_path):
    play = Play(tmp_path)
    names = list(play.nodes)
    play.keys(names)
    public = play.public()
    other = Masking("f", 7, "n09", play.rng.randbytes).keys
    given_ = play.nodes["n00"].shares({**public, "n09": other}, 6)
    play.shares(names[1:])
    sealed = {peer: bytes.fromhex(box) for peer, box in play.round.sealed_for("n01").items()}
    with pytest.raises(FailedPrecondition, match="the shares that node n00 sealed cannot be opened"):
        play.nodes["n01"].accept({**sealed, "n00": given_.by_peer["n01"]})


def test_nothing_is_masked_twice_and_no_step_is_skipped(tmp_path):
    play = Play(tmp_path)
    names = list(play.nodes)
    node = play.nodes["n00"]
    with pytest.raises(FailedPrecondition, match="before the list of nodes"):
        node.accept({})
    with pytest.raises(FailedPrecondition, match="no update was masked here"):
        node.reveal(names)
    play.keys(names)
    play.shares(names)
    with pytest.raises(FailedPrecondition, match="before the peers' shares"):
        node.mask(np.zeros(3, np.uint32))
    play.mask(names)
    with pytest.raises(FailedPrecondition, match="an update was masked before"):
        node.mask(np.zeros(3, np.uint32))
    with pytest.raises(FailedPrecondition, match="shares of other nodes were accepted before"):
        node.accept({peer: bytes.fromhex(box) for peer, box in list(play.round.sealed_for("n00").items())[:-1]})
    for survivors in ([*names, "stranger"], names[1:], names[:5]):
        with pytest.raises(FailedPrecondition):
            node.reveal(survivors)


def revealed_with_a_lie(play, names, kind, liars):
    play.keys(list(play.nodes))
    play.shares(list(play.nodes))
    play.mask(names)
    play.unmasking = Unmasking("f", 7, play.round, play.numbers, play.survivors)
    for name in names:
        revealed = play.nodes[name].reveal(play.survivors)
        shares = {"seeds": dict(revealed.seeds), "keys": dict(revealed.keys)}
        if name in liars:
            victim = list(shares[kind])[-1]
            shares[kind][victim] = bytes(33)
        play.unmasking.take(name, shares["seeds"], shares["keys"])


@pytest.mark.parametrize("kind", ["seeds", "keys"])
@pytest.mark.parametrize("liars", [{"n03"}, {"n00", "n06"}], ids=["one", "two"])
def test_wrong_shares_are_found_out_by_right_ones_and_cost_nothing(tmp_path, kind, liars):
    play = Play(tmp_path)
    revealed_with_a_lie(play, list(play.nodes)[: 6 + len(liars)], kind, liars)
    assert not play.unmasking.agrees() or "n00" not in liars
    play.sum()
    assert play.unmasking.liars == liars


@pytest.mark.parametrize("kind", ["seeds", "keys"])
def test_a_wrong_share_among_too_few_costs_the_round_and_not_the_model(tmp_path, kind):
    play = Play(tmp_path)
    revealed_with_a_lie(play, list(play.nodes)[:6], kind, {"n03"})
    assert not play.unmasking.agrees()
    with pytest.raises(InvalidInput, match=r"wrong|not of one secret"):
        play.sum()
