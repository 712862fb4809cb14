import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actor.session.lease_ledger import Ledger
from parlmesh.v1.fleet_service_pb2 import Lease, TaskResult

_SLOTS, _LIMIT, _PREFETCH = 2, 8, 3


def _lease(lease_id: int) -> Lease:
    return Lease(task_id=f"task-{lease_id}", lease_id=lease_id, attempt=1)


def _result(lease_id: int, message: str = "") -> TaskResult:
    result = TaskResult(lease=_lease(lease_id))
    result.failure.message = message
    return result


def _accept(ledger: Ledger, lease_id: int) -> bool:
    if not ledger.spend(lease_id):
        return False
    ledger.hold(_lease(lease_id))
    return True


def _ledger(slots: int = _SLOTS) -> Ledger:
    return Ledger(slots=slots, unacknowledged_limit=_LIMIT)


def test_credits_cover_the_slots_and_the_prefetch_once() -> None:
    ledger = _ledger()
    assert ledger.grant(_PREFETCH) == _SLOTS + _PREFETCH
    assert ledger.grant(_PREFETCH) == 0


def test_a_result_frees_a_credit() -> None:
    ledger = _ledger(slots=1)
    ledger.grant(0)
    _accept(ledger, 1)
    assert ledger.grant(0) == 0
    ledger.finish(1, _result(1))
    assert ledger.grant(0) == 1


def test_no_credit_is_given_while_too_many_results_are_unacknowledged() -> None:
    ledger = _ledger()
    for lease_id in range(_LIMIT):
        _accept(ledger, lease_id)
        ledger.finish(lease_id, _result(lease_id))
    assert ledger.grant(_PREFETCH) == 0
    ledger.acknowledge(0)
    assert ledger.grant(_PREFETCH) == 1


def test_credits_of_a_broken_stream_are_void() -> None:
    ledger = _ledger()
    ledger.grant(0)
    ledger.reconnect()
    assert ledger.grant(0) == _SLOTS


def test_a_new_stream_names_held_and_owed_leases_and_sends_the_owed_results_again() -> None:
    ledger = _ledger()
    _accept(ledger, 1)
    _accept(ledger, 2)
    ledger.finish(1, _result(1))
    assert len(ledger.take_results(limit=10, limit_bytes=1000)) == 1
    assert ledger.take_results(limit=10, limit_bytes=1000) == []
    assert {lease.lease_id for lease in ledger.reconnect()} == {1, 2}
    assert [result.lease.lease_id for result in ledger.take_results(limit=10, limit_bytes=1000)] == [1]


def test_leases_that_no_longer_stand_are_stopped_and_their_results_forgotten() -> None:
    ledger = _ledger()
    for lease_id in (1, 2, 3, 4):
        _accept(ledger, lease_id)
    ledger.finish(1, _result(1))
    ledger.finish(2, _result(2))
    assert ledger.keep([2, 3]) == [4]
    assert ledger.owed == 1
    assert [result.lease.lease_id for result in ledger.take_results(limit=10, limit_bytes=1000)] == [2]


def test_an_assignment_of_a_known_lease_is_refused() -> None:
    ledger = _ledger()
    assert _accept(ledger, 1)
    assert not _accept(ledger, 1)
    ledger.finish(1, _result(1))
    assert not _accept(ledger, 1)


def test_the_result_of_a_lease_that_was_taken_back_is_not_owed() -> None:
    ledger = _ledger()
    _accept(ledger, 1)
    assert ledger.drop(1)
    assert not ledger.finish(1, _result(1))
    assert ledger.owed == 0


def test_a_message_holds_no_more_results_than_fit_and_always_one() -> None:
    ledger = _ledger()
    for lease_id in (1, 2, 3):
        _accept(ledger, lease_id)
        ledger.finish(lease_id, _result(lease_id, "x" * 100))
    assert len(ledger.take_results(limit=10, limit_bytes=250)) == 2
    assert len(ledger.take_results(limit=10, limit_bytes=10)) == 1
    assert not ledger.has_unsent


class LedgerMachine(RuleBasedStateMachine):
    """An actor and a scheduler that loses messages: every result reaches it, credits never exceed the capacity."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = _ledger()
        self.next_lease = 1
        self.credits = 0
        self.held: set[int] = set()
        self.owed: set[int] = set()
        self.delivered: set[int] = set()

    @rule(prefetch=st.integers(0, _PREFETCH))
    def grant(self, prefetch: int) -> None:
        self.credits += self.ledger.grant(prefetch)

    @precondition(lambda self: self.credits > 0)
    @rule()
    def assign(self) -> None:
        assert _accept(self.ledger, self.next_lease)
        self.held.add(self.next_lease)
        self.credits -= 1
        self.next_lease += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.held)))
        assert self.ledger.finish(lease_id, _result(lease_id))
        self.held.remove(lease_id)
        self.owed.add(lease_id)

    @rule(arrives=st.booleans(), limit=st.integers(1, 3))
    def send(self, arrives: bool, limit: int) -> None:
        for result in self.ledger.take_results(limit=limit, limit_bytes=1000):
            if arrives:
                self.delivered.add(result.lease.lease_id)

    @precondition(lambda self: self.delivered & self.owed)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.delivered & self.owed)))
        self.ledger.acknowledge(lease_id)
        self.owed.remove(lease_id)

    @precondition(lambda self: self.held | self.owed)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.held | self.owed)))
        assert self.ledger.drop(lease_id) == (lease_id in self.held)
        self.held.discard(lease_id)
        self.owed.discard(lease_id)

    @rule(data=st.data())
    def reconnect(self, data: st.DataObject) -> None:
        named = {lease.lease_id for lease in self.ledger.reconnect()}
        assert named == self.held | self.owed
        standing = set(data.draw(st.lists(st.sampled_from(sorted(named)), unique=True))) if named else set()
        assert set(self.ledger.keep(standing)) == self.held - standing
        for lease_id in self.held - standing:
            self.ledger.drop(lease_id)
        self.held &= standing
        self.owed &= standing
        self.delivered -= self.owed
        self.credits = 0

    @invariant()
    def counts_agree_and_are_bounded(self) -> None:
        assert self.ledger.held == len(self.held)
        assert self.ledger.owed == len(self.owed)
        assert len(self.held) + self.credits <= _SLOTS + _PREFETCH
        assert len(self.held) + self.credits + len(self.owed) <= _LIMIT

    def teardown(self) -> None:
        while self.ledger.has_unsent:
            self.send(arrives=True, limit=3)
        self.ledger.reconnect()
        self.delivered |= {result.lease.lease_id for result in self.ledger.take_results(limit=99, limit_bytes=9999)}
        assert self.owed <= self.delivered


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
