"""The history checker finds every planted violation, and none in a history that keeps all promises."""

from pathlib import Path

import pytest

from parlmesh.testing.history import (
    Began,
    Cancelled,
    Delivered,
    Ended,
    Fault,
    History,
    Journal,
    Record,
    Scrape,
    Submitted,
    Version,
)
from parlmesh.testing.history_rules import Limits, check
from scheduler.store import committer

ACCEPTED = Submitted(("t",), 1.0, 1.1, "accepted")


def attempt(
    token: str,
    at: float,
    *,
    task_id: str = "t",
    actor: str = "a",
    number: int = 1,
    seconds: float = 1.0,
    how: str = "succeeded",
    inline: bool = False,
) -> list[Record]:
    return [Began(task_id, number, actor, token, at, inline), Ended(token, at + seconds, how)]


def rules(*records: Record | list[Record], **limits: object) -> list[str]:
    flat = [each for record in records for each in (record if isinstance(record, list) else [record])]
    return [violation.rule for violation in check(History(flat), Limits(**limits))]  # type: ignore[arg-type]


def test_a_history_that_keeps_every_promise_has_no_violation() -> None:
    assert rules(ACCEPTED, attempt("x", 2.0), Delivered("t", 3.1, "succeeded", "x")) == []


def test_an_accepted_task_without_an_end_is_a_loss_once_everything_had_time_to_end() -> None:
    assert rules(ACCEPTED, attempt("x", 2.0)) == ["an accepted task ends"]
    assert rules(ACCEPTED, attempt("x", 2.0), settled=False) == []
    assert rules(Submitted(("t",), 1.0, 1.1, "unknown")) == []


def test_two_different_ends_are_noticed_and_the_same_end_twice_is_not() -> None:
    end = Delivered("t", 3.1, "succeeded", "x")
    assert rules(ACCEPTED, attempt("x", 2.0), end, Delivered("t", 9.0, "succeeded", "x")) == []
    assert rules(ACCEPTED, attempt("x", 2.0), end, Delivered("t", 9.0, "failed")) == ["a task ends once"]


def test_two_accepted_results_are_noticed() -> None:
    found = rules(
        ACCEPTED,
        attempt("x", 2.0, how="failed"),
        attempt("y", 4.0, number=2),
        Delivered("t", 5.1, "succeeded", "x"),
        Delivered("t", 5.2, "succeeded", "y"),
    )
    assert found == ["a task ends once"]


def test_a_success_without_an_effect_is_noticed() -> None:
    assert rules(ACCEPTED, Delivered("t", 3.1, "succeeded", "x")) == ["a success has an effect"]


def test_a_refused_task_that_runs_is_noticed() -> None:
    refused = Submitted(("t",), 1.0, 1.1, "refused")
    assert rules(refused, attempt("x", 2.0)) == ["a refused task never runs"]
    assert rules(refused, ACCEPTED, attempt("x", 2.0), Delivered("t", 3.1, "succeeded", "x")) == []


def test_a_cancelled_task_that_succeeds_is_noticed() -> None:
    found = rules(ACCEPTED, attempt("x", 2.0), Cancelled(("t",), 2.5), Delivered("t", 3.1, "succeeded", "x"))
    assert found == ["a cancelled task stays cancelled"]


def test_work_that_begins_after_its_end_was_delivered_is_noticed() -> None:
    end = Delivered("t", 3.1, "succeeded", "x")
    late = attempt("y", 9.0, actor="b", number=2)
    lost = Fault("a", "kill", 2.5, 2.5)
    assert rules(ACCEPTED, attempt("x", 2.0), lost, late, end) == ["nothing begins after its end"]
    # An actor that was itself cut off could not know.
    assert rules(ACCEPTED, attempt("x", 2.0), lost, late, end, Fault("b", "cut", 4.0, 8.0, lingers=2.0)) == []


def test_an_actor_that_was_cut_off_hears_of_it_when_the_scheduler_is_back() -> None:
    end = Delivered("t", 3.1, "succeeded", "x")
    cut = (ACCEPTED, attempt("x", 2.0), end, Fault("b", "cut", 1.0, 3.0, lingers=2.0))
    late = attempt("y", 9.0, actor="b")
    assert rules(*cut, late) == ["nothing begins after its end", "live work is not repeated"]
    assert rules(*cut, late, Fault("scheduler", "kill_scheduler", 4.0, 8.0)) == []


def test_an_assignment_may_be_on_its_way_while_its_task_is_cancelled_but_not_for_long() -> None:
    cancelled: list[Record] = [ACCEPTED, Cancelled(("t",), 3.0), Delivered("t", 3.0, "cancelled")]
    assert rules(cancelled, attempt("x", 3.5)) == []
    assert rules(cancelled, attempt("x", 9.0)) == ["nothing begins after its end"]
    dies = Fault("scheduler", "kill_scheduler", 3.1, 8.0)
    assert rules(cancelled, attempt("x", 9.0), dies) == []
    assert rules(cancelled, attempt("x", 10.5), dies) == ["nothing begins after its end"]


TWICE = (ACCEPTED, attempt("x", 2.0), attempt("y", 2.5, actor="b", number=2), Delivered("t", 4.0, "succeeded", "y"))


def test_live_work_that_is_repeated_is_noticed_whatever_happened_to_the_scheduler() -> None:
    assert rules(*TWICE) == ["live work is not repeated"]
    assert rules(*TWICE, Fault("scheduler", "kill", 3.2, 3.2)) == ["live work is not repeated"]


def killed(at: float, until: float = 0.0) -> Fault:
    return Fault("scheduler", "kill_scheduler", at, until or at)


def test_a_first_lease_whose_disk_failed_until_the_scheduler_died_is_not_known_afterwards() -> None:
    full = Fault("disk of scheduler", "full_disk_scheduler", 1.9, 4.0)
    assert rules(*FORGOTTEN_LEASE, full, killed(3.5)) == []
    for death in (killed(5.1), killed(1.0)):
        assert rules(*FORGOTTEN_LEASE, full, death) == ["live work is not repeated"]
    assert rules(*FORGOTTEN_LEASE, full) == ["live work is not repeated"]
    assert rules(*TWICE, Fault("disk of scheduler", "full_disk_scheduler", 1.9, 9.0), killed(3.5)) != []


@pytest.mark.parametrize(
    ("start", "end", "tried_again"),
    [
        (1.9, 3.1, 4.35),  # the last pause is no longer than all earlier ones plus the first
        (1.9, 3.6, 5.35),
        (0.0, 4.0, 6.0),  # and no longer than the longest
        (1.9, 1.95, 1.95),  # the disk worked again when the lease was given out
    ],
)
def test_a_commit_that_a_disk_refused_waits_for_its_next_try_and_no_longer(
    start: float, end: float, tried_again: float
) -> None:
    late = (ACCEPTED, attempt("x", 2.0), attempt("y", 9.0, actor="b"), Delivered("t", 10.0, "succeeded", "y"))
    disk = Fault("disk of scheduler", "broken_disk_scheduler", start, end)
    assert rules(*late, disk, killed(max(3.05, tried_again + 0.01))) == ["live work is not repeated"]
    if end > 2.0:
        assert rules(*late, disk, killed(tried_again - 0.01)) == []
        # A journal that recorded the lease has counted it.
        known = (ACCEPTED, attempt("x", 2.0), attempt("y", 9.0, actor="b", number=2))
        assert rules(*known, Delivered("t", 10.0, "succeeded", "y"), disk, killed(tried_again - 0.01)) != []


def test_the_pauses_of_a_commit_are_those_that_the_rules_know_of() -> None:
    limits = Limits()
    pauses = (limits.first_pause_seconds, limits.longest_pause_seconds)
    assert pauses == (committer.FIRST_RETRY_SECONDS, committer.LONGEST_RETRY_SECONDS)


# The journal lacks the first lease, so the second counts as a first one too.
FORGOTTEN_LEASE = (ACCEPTED, attempt("x", 2.0), attempt("y", 5.0, actor="b"), Delivered("t", 6.0, "succeeded", "y"))


def test_a_first_lease_of_the_schedulers_last_moment_may_have_died_with_it() -> None:
    assert rules(*FORGOTTEN_LEASE, killed(2.2)) == []
    assert rules(*FORGOTTEN_LEASE, killed(1.6)) == [], "the assignment was in the socket"
    for death in (killed(3.1), killed(1.4), Fault("scheduler", "terminate_scheduler", 2.2, 2.2)):
        assert rules(*FORGOTTEN_LEASE, death) == ["live work is not repeated"]


def test_a_lease_that_was_counted_did_not_die_with_the_scheduler() -> None:
    assert rules(*TWICE, killed(2.2)) == ["live work is not repeated"]
    later = attempt("x", 2.0, number=2), attempt("y", 2.5, actor="b", number=3), Delivered("t", 4.0, "succeeded", "y")
    assert rules(ACCEPTED, *later, killed(2.2)) == ["live work is not repeated"]


def test_a_lease_that_died_with_the_scheduler_may_have_waited_for_a_slot_but_not_an_inline_one() -> None:
    other = Submitted(("o",), 0.1, 0.2, "accepted"), attempt("z", 0.3, task_id="o", seconds=1.6)
    ended = Delivered("o", 1.95, "succeeded", "z")
    assert rules(*FORGOTTEN_LEASE, *other, ended, killed(1.0, 4.0)) == []
    assert rules(*FORGOTTEN_LEASE, *other, ended, killed(1.0, 1.8)) == ["live work is not repeated"]
    inline = attempt("x", 2.0, inline=True), attempt("y", 5.0, actor="b", inline=True)
    found = rules(ACCEPTED, *inline, Delivered("t", 6.0, "succeeded", "y"), *other, ended, killed(1.0, 4.0))
    assert found == ["live work is not repeated"]


@pytest.mark.parametrize(
    ("fault", "excused"),
    [
        (Fault("a", "kill", 2.2, 2.2), True),
        (Fault("a", "cut", 0.5, 1.5, lingers=1.0), True),
        (Fault("a", "kill", 1.5, 1.5), False),
        (Fault("a", "kill", 3.0, 3.0), False),
        (Fault("b", "kill", 2.2, 2.2), False),
    ],
)
def test_only_a_fault_of_its_own_actor_excuses_a_repetition(fault: Fault, excused: bool) -> None:
    assert (rules(*TWICE, fault) == []) is excused


def test_a_fault_long_after_its_success_excuses_no_repetition() -> None:
    late = attempt("y", 60.0, actor="b", number=2), Delivered("t", 70.0, "succeeded", "y")
    dies = Fault("a", "kill", 40.0, 40.0)
    assert rules(ACCEPTED, attempt("x", 2.0), *late, dies) == ["live work is not repeated"]
    # There was no scheduler to take the result.
    for kind in ("kill_scheduler", "terminate_scheduler"):
        assert rules(ACCEPTED, attempt("x", 2.0), *late, dies, Fault("scheduler", kind, 10.0, 41.0)) == []
    assert rules(ACCEPTED, attempt("x", 2.0), *late, Fault("a", "kill", 10.0, 10.0)) == []


def test_an_actor_that_is_cut_off_may_begin_what_it_was_given_before_and_nothing_newer() -> None:
    cut = Fault("b", "refuse", 2.1, 2.6)
    assert rules(*TWICE, cut) == ["live work is not repeated"]
    earlier = attempt("y", 2.5, actor="b")
    assert rules(ACCEPTED, attempt("x", 2.0), earlier, Delivered("t", 4.0, "succeeded", "x"), cut) == []


def test_a_task_that_is_moved_may_be_stopped_in_the_moment_in_which_it_begins_and_not_later() -> None:
    end = Delivered("t", 6.0, "succeeded", "y")
    moved = attempt("y", 4.5, actor="b")
    assert rules(ACCEPTED, attempt("x", 2.0, seconds=0.05, how="stopped"), moved, end) == []
    late = attempt("x", 2.0, seconds=2.4, how="stopped")
    assert rules(ACCEPTED, late, moved, end) == ["live work is not repeated"]
    for actor, found in (("b", []), ("a", ["live work is not repeated"])):
        again = attempt("y", 2.5, actor=actor), Delivered("t", 4.0, "succeeded", "y")
        assert rules(ACCEPTED, attempt("x", 2.0, seconds=0.0), *again) == found
    inline = attempt("x", 2.0, seconds=0.0, inline=True), attempt("y", 2.5, actor="b", inline=True)
    assert rules(ACCEPTED, *inline, Delivered("t", 4.0, "succeeded", "y")) == ["live work is not repeated"]


def test_a_moved_task_that_fails_may_be_followed_by_another_attempt_on_the_actor_it_was_moved_from() -> None:
    failed = attempt("x", 2.0, actor="b", seconds=0.6, how="failed")
    again = attempt("z", 4.0, number=2), Delivered("t", 5.1, "succeeded", "z")
    assert rules(ACCEPTED, failed, attempt("y", 2.3, seconds=0.01, how="stopped"), *again) == []
    for stopped in (attempt("y", 2.3, seconds=2.4, how="stopped"), attempt("y", 2.3, seconds=0.01)):
        assert rules(ACCEPTED, failed, stopped, *again) == ["live work is not repeated"]
    unharmed = attempt("x", 2.0, actor="b", seconds=0.6, how="stopped")
    twice = rules(ACCEPTED, unharmed, attempt("y", 2.3, seconds=0.01, how="stopped"), *again)
    assert twice == ["live work is not repeated"]


def test_a_task_submitted_again_after_its_outcome_was_forgotten_may_run_again() -> None:
    unanswered = Submitted(("t",), 1.0, 4.5, "accepted")
    again = attempt("x", 2.0), attempt("y", 4.0), Delivered("t", 5.1, "succeeded", "y")
    assert rules(unanswered, *again, kept_outcomes=50) == []
    repeated = ["live work is not repeated"]
    assert rules(unanswered, *again, kept_outcomes=1000) == repeated
    assert rules(ACCEPTED, *again, kept_outcomes=50) == repeated
    counted = attempt("x", 2.0), attempt("y", 4.0, number=2), Delivered("t", 5.1, "succeeded", "y")
    assert rules(unanswered, *counted, kept_outcomes=50) == repeated


def test_a_failed_attempt_may_be_followed_by_another() -> None:
    found = rules(
        ACCEPTED,
        attempt("x", 2.0, how="failed"),
        attempt("y", 4.0, number=2),
        Delivered("t", 5.1, "succeeded", "y"),
    )
    assert found == []


def test_what_retention_dropped_must_have_ended() -> None:
    forgotten = Delivered("t", 9.0, "forgotten")
    assert rules(ACCEPTED, attempt("x", 2.0), forgotten) == []
    assert rules(ACCEPTED, forgotten) == ["nothing is forgotten before it ended"]
    for how in ("failed", "stopped"):
        assert rules(ACCEPTED, attempt("x", 2.0, how=how), forgotten) == ["nothing is forgotten before it ended"]
    assert rules(ACCEPTED, forgotten, Cancelled(("t",), 5.0, answered=False)) == []


def test_a_version_that_goes_back_is_noticed() -> None:
    assert rules(Version("o", "r", 3, 1.0), Version("o", "r", 3, 2.0), Version("o", "r", 7, 3.0)) == []
    assert rules(Version("o", "r", 3, 2.0), Version("o", "r", 2, 3.0)) == ["policy versions never go back"]
    assert rules(Version("o", "r", 3, 2.0), Version("o", "another", 2, 3.0)) == []


def test_books_that_do_not_balance_are_noticed() -> None:
    assert rules(Scrape("learner", 1.0, received=9, trained=5, queued=3, dropped=1)) == []
    assert rules(Scrape("learner", 1.0, received=9, trained=5, queued=2, dropped=1)) == ["the books balance"]


def test_records_come_back_from_their_files_and_a_line_cut_by_a_kill_costs_itself(tmp_path: Path) -> None:
    records: list[Record] = [ACCEPTED, Fault("a", "kill", 1.0, 1.0), *attempt("x", 2.0)]
    with Journal(tmp_path / "one.jsonl") as journal:
        for record in records:
            journal.add(record)
    with (tmp_path / "one.jsonl").open("a") as file:
        file.write('{"is":"Ended","tok')
    assert History.read([tmp_path / "one.jsonl"]).records == records
