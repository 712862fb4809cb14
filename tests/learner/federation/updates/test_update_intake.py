import contextlib

import numpy as np
import pytest

from learner.federation import metrics
from learner.federation.rules import events
from learner.federation.rules.records import Offer
from learner.federation.rules.rounds import Rounds
from learner.federation.updates.update_intake import UpdateAbout, UpdateIntake
from learner.federation.updates.update_spool import Spool, SpooledUpdates
from parlmesh.digests import fast_digest
from parlmesh.errors import FailedPrecondition, InvalidInput, PermissionDenied, Unavailable
from parlmesh.federation.config import EvaluationConfig, FederationConfig
from parlmesh.federation.schema import ModelSchema
from parlmesh.security import Identity, Role

from ..conftest import files_no_longer_than

SIZE = 8
SCHEMA = ModelSchema.of({"weight": np.zeros(SIZE, np.float32)})
ANYONE = Identity("anyone", Role.OPERATOR)


class Desk:
    """The intake of a round of four nodes."""

    def __init__(self, folder):
        self.core = Rounds(FederationConfig(task="drift", rounds=5, evaluation=EvaluationConfig(interval_rounds=0)))
        self.path = folder / "updates.bin"
        self.spool = Spool(self.path, SIZE)
        self.stumbles, self.events = [], []
        self.intake = UpdateIntake("f", self.core, SCHEMA, self.spool, self.handle, self.interrupt)
        self.begin()

    def handle(self, event):
        self.core.handle(event, 1.0)
        self.events.append(event)

    def interrupt(self, error):
        self.stumbles.append(error)
        return Unavailable("paused")

    def begin(self):
        self.core.handle(events.Begin(("a", "b", "sim#0", "sim#1"), "entropy"), 0.0)

    def open(self, node, value, caller=ANYONE):
        asked = self.core.assignments[node]
        data = np.full(SIZE, value, "<f4").tobytes()
        offer = Offer(node, asked.round, asked.base_version, asked.nonce, 10, fast_digest(data).hex())
        about = UpdateAbout((), SCHEMA.digest, len(data), "none", {})
        return self.intake.open(offer, about, caller), memoryview(data)

    def deliver(self, node, value):
        arrival, data = self.open(node, value)
        arrival.take(data)
        arrival.finish()

    def joined(self):
        answers = sorted(self.core.participants.kept(), key=lambda answer: answer.node_id)
        return SpooledUpdates(self.spool, [answer.slot for answer in answers]).block(0, SIZE)[:, 0].tolist()


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_updates_that_come_at_once_never_share_a_place(desk):
    first, first_data = desk.open("a", 1.0)
    second, second_data = desk.open("b", 2.0)
    third, third_data = desk.open("sim#0", 3.0)
    third.take(third_data[:16])
    first.take(first_data[:16])
    second.take(second_data)
    second.finish()
    # A place that was given up is taken again, and only that.
    third.break_off()
    fourth, fourth_data = desk.open("sim#1", 4.0)
    fourth.take(fourth_data)
    first.take(first_data[16:])
    for arrival in (fourth, first):
        arrival.finish()
    assert desk.joined() == [1.0, 2.0, 4.0]
    assert desk.core.used_slots() == {0, 1, 2}
    assert desk.intake.in_flight == 0


def test_places_of_one_round_are_those_of_the_next_but_for_one_that_is_still_being_filled(desk):
    straggler, data = desk.open("b", 2.0)
    for node, value in (("a", 1.0), ("sim#0", 3.0), ("sim#1", 4.0)):
        desk.deliver(node, value)
    desk.core.handle(events.TaskFailed("b", 1, "gave up"), 1.0)
    desk.core.handle(events.Aggregated(2, "ff"), 2.0)
    desk.begin()
    for node, value in (("a", 5.0), ("sim#0", 6.0), ("sim#1", 7.0)):
        desk.deliver(node, value)
    with pytest.raises(FailedPrecondition, match="has closed"):
        straggler.take(data)
    assert [update.refusal for update in desk.core.history[0].updates][-1] == "LATE"
    assert desk.joined() == [5.0, 6.0, 7.0]


def test_an_update_with_too_much_data_is_refused_once_and_gives_its_place_back(desk):
    arrival, data = desk.open("a", 1.0)
    arrival.take(data)
    with pytest.raises(InvalidInput, match="more than the promised"):
        arrival.take(data)
    arrival.break_off()
    assert [update.refusal for update in desk.core.history[-1].updates] == ["UPDATE_SIZE"]
    assert desk.intake.in_flight == 0


def test_a_host_speaks_for_its_virtual_nodes_and_for_no_others(desk):
    host = Identity("sim", Role.ACTOR)
    desk.open("sim#1", 1.0, host)
    for stranger in ("a", "b"):
        with pytest.raises(PermissionDenied, match=stranger):
            desk.open(stranger, 1.0, host)


def test_an_update_that_is_sent_anew_takes_the_place_of_the_one_that_is_still_open(desk):
    opened = [desk.open("a", 1.0) for _ in range(400)]
    for arrival, data in opened:
        with contextlib.suppress(Unavailable):
            arrival.take(data[:16])
    assert desk.intake.in_flight == 1
    assert desk.path.stat().st_size <= SIZE * 4
    last, data = opened[-1]
    last.take(data[16:])
    last.finish()
    for arrival, data in opened[:-1]:
        with pytest.raises(Unavailable):
            arrival.take(data[16:])
        with pytest.raises(Unavailable):
            arrival.finish()
        arrival.break_off()
    assert desk.joined() == [1.0]
    assert not desk.core.history[-1].updates


def test_space_that_a_large_round_took_is_given_back(desk):
    for node in ("a", "b", "sim#0", "sim#1"):
        desk.deliver(node, 1.0)
    assert desk.path.stat().st_size == 4 * 4 * SIZE
    desk.core.handle(events.Aggregated(2, "ff"), 2.0)
    desk.core.handle(events.Begin(("a",), "entropy"), 3.0)
    desk.deliver("a", 1.0)
    assert desk.path.stat().st_size == 4 * SIZE


def test_a_full_disk_is_not_held_against_the_node(desk):
    arrival, data = desk.open("a", 1.0)
    with files_no_longer_than(16), pytest.raises(Unavailable):
        arrival.take(data)
    assert len(desk.stumbles) == 1
    assert desk.intake.in_flight == 0
    assert not desk.core.history[-1].updates
    desk.deliver("a", 1.0)
    assert desk.joined() == [1.0]


def test_strangers_and_floods_of_bad_headers_are_counted_and_not_written_down(desk):
    stranger = Identity("stranger", Role.ACTOR)
    for _ in range(50):
        with pytest.raises(PermissionDenied):
            desk.open("a", 1.0, stranger)
    assert not desk.events
    asked = desk.core.assignments["a"]
    about = UpdateAbout((), SCHEMA.digest, 4 * SIZE, "none", {})
    before = metrics.UNLISTED._value.get()
    for number in range(500):
        offer = Offer("a", asked.round, asked.base_version, f"{number:032x}", 10, "00" * 16)
        with pytest.raises(FailedPrecondition):
            desk.intake.open(offer, about, ANYONE)
    assert len(desk.events) == 20
    assert metrics.UNLISTED._value.get() == before + 480
    assert desk.core.history[-1].unrecorded == 480


@pytest.mark.parametrize("samples", [0, 1 << 54, (1 << 64) - 1])
def test_samples_that_no_node_has_are_refused(desk, samples):
    asked = desk.core.assignments["a"]
    offer = Offer("a", asked.round, asked.base_version, asked.nonce, samples, "00" * 16)
    with pytest.raises(InvalidInput, match="1 to 9007199254740992 samples"):
        desk.intake.open(offer, UpdateAbout((), SCHEMA.digest, 4 * SIZE, "none", {}), ANYONE)


def test_uploads_that_are_never_ended_hold_no_place_beyond_their_round(desk):
    left = []
    for version in range(2, 6):
        left.append(desk.open("b", 2.0)[0])
        for node in ("a", "sim#0", "sim#1"):
            desk.deliver(node, 1.0)
        desk.core.handle(events.TaskFailed("b", desk.core.round, "gave up"), 1.0)
        desk.core.handle(events.Aggregated(version, "ff"), 2.0)
        desk.begin()
    assert desk.intake.in_flight <= 2
    assert desk.path.stat().st_size <= 5 * 4 * SIZE
    for arrival in left:
        arrival.break_off()
    assert desk.intake.in_flight <= 1
