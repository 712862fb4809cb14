"""Rules that a history must obey, whatever failed. Pure: reads records and reports violations.

An attempt may be repeated if its actor was killed, stopped or cut off: that is what leases are for. Nothing else is an
excuse, and a restart of the scheduler only for first leases that it granted in its last moments.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from .history import Began, Cancelled, Delivered, Ended, Fault, History, Scrape, Submitted, Version

FORGOTTEN = "forgotten"
SCHEDULER = "scheduler"
# Fewer than may end between two tries of a submission.
_FEW_OUTCOMES = 1000
DISK = "disk of scheduler"
Of = TypeVar("Of", Delivered, Began)


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated rule and its evidence."""

    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Assumptions of a check."""

    settled: bool = True
    """Everything had time to end, so a task without an outcome is a violation."""
    on_its_way_seconds: float = 2.0
    """How long an assignment and the cancellation that follows it may take to reach an actor."""
    accepted_seconds: float = 15.0
    """How long a result may take to be accepted while actor and scheduler are up; longer than any disk fault."""
    unrecorded_seconds: float = 1.0
    """How long before its death a scheduler may have granted a lease that its journal does not contain. First attempts
    start while their lease is still being recorded."""
    kept_outcomes: int = 100_000
    """The scheduler's `retention.max_tasks`. A task that is submitted again after its outcome was forgotten runs again.
    A learner's tasks are not in the history, but count."""
    first_pause_seconds: float = 0.05
    longest_pause_seconds: float = 2.0
    """Longest pause between two tries of a failed commit; each pause is twice the previous one."""
    in_the_socket_seconds: float = 0.5
    """How long an assignment may be in flight after the death of the scheduler that sent it. It takes longer only on a
    starved machine, which is a separate fault."""


def check(history: History, limits: Limits | None = None) -> list[Violation]:
    """All violations; empty for a history that obeys every rule."""
    limits = limits or Limits()
    books = _Books(history, limits)
    found = [
        *books.acknowledged_ends_once(),
        *books.results_are_of_attempts(),
        *books.refused_never_ran(),
        *books.cancelled_stays_cancelled(),
        *books.nothing_begins_after_the_end(),
        *books.live_work_is_not_repeated(),
    ]
    return [*found, *versions_never_go_back(history.of(Version)), *books_balance(history.of(Scrape))]


class _Books:
    def __init__(self, history: History, limits: Limits) -> None:
        self._limits = limits
        self._submits: list[Submitted] = history.of(Submitted)
        self._cancels: list[Cancelled] = history.of(Cancelled)
        self._cancelled = {task_id for each in self._cancels for task_id in each.task_ids}
        self._ends = _grouped(history.of(Delivered))
        self._began = _grouped(history.of(Began))
        self._began_on: dict[str, list[Began]] = defaultdict(list)
        for attempt in history.of(Began):
            self._began_on[attempt.actor].append(attempt)
        self._ended: dict[str, Ended] = {record.token: record for record in history.of(Ended)}
        self._faults: dict[str, list[Fault]] = defaultdict(list)
        for fault in history.of(Fault):
            self._faults[fault.target].append(fault)
        # Faults of any kind: there was no scheduler to take results or to inform actors.
        self._outages = sorted(self._faults.get(SCHEDULER, []), key=lambda fault: fault.start)
        self._deaths = [outage for outage in self._outages if outage.kind.startswith("kill")]
        self._bad_disks = self._faults.get(DISK, [])
        self._accepted = {task_id for each in self._submits if each.answer == "accepted" for task_id in each.task_ids}

    def acknowledged_ends_once(self) -> Iterable[Violation]:
        for task_id in sorted(self._accepted):
            ends = self._ends.get(task_id, [])
            if not ends and self._limits.settled:
                yield Violation("an accepted task ends", f"{task_id} has no end; {self._story(task_id)}")
        for task_id, ends in self._ends.items():
            known = {(end.state, end.token) for end in ends if end.state != FORGOTTEN}
            if len(known) > 1:
                yield Violation("a task ends once", f"{task_id} ended {sorted(known)}; {self._story(task_id)}")
            if not known and not self._succeeded_or_was_cancelled(task_id):
                yield Violation("nothing is forgotten before it ended", f"{task_id}; {self._story(task_id)}")

    def results_are_of_attempts(self) -> Iterable[Violation]:
        for task_id, ends in self._ends.items():
            tokens = {began.token for began in self._began.get(task_id, [])}
            for token in {end.token for end in ends if end.state == "succeeded"}:
                if token not in tokens:
                    yield Violation("a success has an effect", f"{task_id} succeeded with {token!r} of no attempt")

    def refused_never_ran(self) -> Iterable[Violation]:
        for each in self._submits:
            for task_id in each.task_ids if each.answer == "refused" else ():
                if task_id in self._began and task_id not in self._accepted:
                    yield Violation("a refused task never runs", f"{task_id}; {self._story(task_id)}")

    def cancelled_stays_cancelled(self) -> Iterable[Violation]:
        for each in self._cancels:
            for task_id in each.task_ids if each.answered else ():
                for end in self._ends.get(task_id, []):
                    if end.state not in ("cancelled", FORGOTTEN):
                        detail = f"{task_id} was cancelled and ended {end.state}; {self._story(task_id)}"
                        yield Violation("a cancelled task stays cancelled", detail)

    def nothing_begins_after_the_end(self) -> Iterable[Violation]:
        for task_id, ends in self._ends.items():
            first = min(ends, key=lambda end: end.at)
            # A cancellation is reported immediately; its task may still be in flight to an actor, followed by the
            # revocation.
            until = self._revoked_by(first.at) if first.state == "cancelled" else first.at
            for began in self._began.get(task_id, []):
                if began.at > until and not self._excused(began.actor, began.at, began.at):
                    detail = f"{task_id} began {began.at - first.at:.3f} s after its end; {self._story(task_id)}"
                    yield Violation("nothing begins after its end", detail)

    def live_work_is_not_repeated(self) -> Iterable[Violation]:
        """A second attempt requires that the first one failed or that its actor had a fault."""
        for task_id, attempts in self._began.items():
            attempts.sort(key=lambda began: began.at)
            for before, after in itertools.pairwise(attempts):
                end = self._ended.get(before.token)
                if (end is not None and end.how == "failed") or self._moved(before, end, after):
                    continue
                if self._failed_elsewhere(before, end, after) or self._forgotten(before, end, after):
                    continue
                # An actor that was cut off may still start earlier assignments.
                stale = after.attempt <= before.attempt and self._excused(after.actor, after.at, after.at)
                until = after.at if end is None else min(after.at, self._accepted_by(end))
                if not (stale or self._excused(before.actor, before.at, until) or self._unrecorded(before, after)):
                    yield Violation("live work is not repeated", f"{task_id}; {self._story(task_id)}")

    def _excused(self, actor: str, start: float, end: float) -> bool:
        """Whether the actor had a fault between the two times, or was still affected by one."""
        return any(fault.start <= end and self._felt_until(fault) >= start for fault in self._faults.get(actor, []))

    def _accepted_by(self, end: Ended) -> float:
        """When the result of an attempt must have been accepted; later faults of its actor are no excuse."""
        by = end.at + self._limits.accepted_seconds
        for outage in self._outages:
            if outage.start <= by and outage.end >= end.at:
                by = max(by, outage.end + self._limits.accepted_seconds)
        return by

    def _revoked_by(self, cancelled: float) -> float:
        """When the actor must know of a cancellation: the revocation may be lost with the scheduler that sends it."""
        by = cancelled + self._limits.on_its_way_seconds
        for outage in self._outages:
            if outage.start <= by and outage.end >= cancelled:
                by = max(by, outage.end + self._limits.on_its_way_seconds)
        return by

    def _felt_until(self, fault: Fault) -> float:
        """An actor that was cut off learns of it only once there is a scheduler to tell it."""
        until = fault.end + fault.lingers
        for outage in self._outages if fault.lingers else ():
            if outage.start <= until:
                until = max(until, outage.end + fault.lingers)
        return until

    def _moved(self, before: Began, end: Ended | None, after: Began) -> bool:
        """Whether it was moved from a full actor to an idle one just as it started there. A short attempt may have
        ended there before the actor knew."""
        if before.actor == after.actor or before.inline:
            return False
        over = end.at if end is not None and end.how == "stopped" else after.at
        return after.attempt == before.attempt and over - before.at < self._limits.on_its_way_seconds

    def _failed_elsewhere(self, before: Began, end: Ended | None, after: Began) -> bool:
        """Whether it was moved from here just as it started, and then failed on the actor it was moved to."""
        if end is None or end.how != "stopped" or before.inline:
            return False
        moved = end.at - before.at < self._limits.on_its_way_seconds
        others = (each for each in self._began[before.task_id] if each.actor != before.actor)
        ends = (self._ended.get(each.token) for each in others if each.attempt == before.attempt)
        return moved and any(each is not None and each.how == "failed" and each.at <= after.at for each in ends)

    def _forgotten(self, before: Began, end: Ended | None, after: Began) -> bool:
        """Whether the outcome may have been forgotten while its submitter waited for an answer and sent it again."""
        if end is None or end.how != "succeeded" or after.attempt != 1:
            return False
        return self._limits.kept_outcomes < _FEW_OUTCOMES and any(
            each.start <= before.at and after.at <= each.end
            for each in self._submits
            if before.task_id in each.task_ids
        )

    def _unrecorded(self, before: Began, after: Began) -> bool:
        """Whether the scheduler died so soon after granting a first attempt that the lease may be lost. Then the
        repetition is a first attempt too: a journal that contained the lease would have counted it."""
        if before.attempt != 1 or after.attempt != 1:
            return False
        limits = self._limits
        for death in (each for each in self._deaths if each.start <= after.at):
            if -limits.unrecorded_seconds <= before.at - death.start <= limits.in_the_socket_seconds:
                return True
            # It waited for a slot, and there was no scheduler to revoke it.
            if death.start < before.at <= death.end and not before.inline and self._busy(before.actor, death.start):
                return True
            # The commit of the lease failed and was not retried before the death.
            if any(
                disk.start <= before.at <= min(disk.end, death.start) and death.start <= self._tried_again(disk)
                for disk in self._bad_disks
            ):
                return True
        return False

    def _tried_again(self, disk: Fault) -> float:
        """The latest time by which a commit that the disk refused was retried after the disk recovered. Pauses double,
        so the last one is at most the sum of all earlier ones plus the first."""
        limits = self._limits
        return disk.end + min(limits.longest_pause_seconds, disk.end - disk.start + limits.first_pause_seconds)

    def _busy(self, actor: str, at: float) -> bool:
        """Whether an attempt was running on the actor at that time."""
        ends = ((began, self._ended.get(began.token)) for began in self._began_on.get(actor, []))
        return any(began.at <= at and end is not None and end.at >= at for began, end in ends)

    def _succeeded_or_was_cancelled(self, task_id: str) -> bool:
        """Whether the task may be forgotten: a failed or stopped attempt does not end a task."""
        ends = (self._ended.get(began.token) for began in self._began.get(task_id, []))
        return any(end is not None and end.how == "succeeded" for end in ends) or task_id in self._cancelled

    def _story(self, task_id: str) -> str:
        """All records of a task in order, for finding the cause."""
        told: list[tuple[float, str]] = []
        for each in self._submits:
            if task_id in each.task_ids:
                told.append((each.start, f"submitted, {each.answer} at {each.end:.3f}"))
        for began in self._began.get(task_id, []):
            told.append((began.at, f"attempt {began.attempt} on {began.actor}"))
            ended = self._ended.get(began.token)
            if ended is not None:
                told.append((ended.at, f"attempt {began.attempt} {ended.how}"))
        told += [(end.at, f"delivered {end.state}") for end in self._ends.get(task_id, [])]
        told += [(each.at, "cancelled") for each in self._cancels if task_id in each.task_ids]
        return "; ".join(f"{at:.3f} {what}" for at, what in sorted(told))


def versions_never_go_back(versions: Iterable[Version]) -> Iterable[Violation]:
    """Checks the versions of each run that each observer received."""
    newest: dict[tuple[str, str], int] = {}
    for each in sorted(versions, key=lambda each: each.at):
        key = each.observer, each.run
        if each.version < newest.get(key, 0):
            detail = f"run {each.run} went from {newest[key]} to {each.version} before {each.observer}"
            yield Violation("policy versions never go back", detail)
        newest[key] = each.version


def books_balance(scrapes: Iterable[Scrape]) -> Iterable[Violation]:
    """received = trained + queued + dropped, at every scrape."""
    for each in scrapes:
        if each.received != each.trained + each.queued + each.dropped:
            sums = f"{each.received} received, {each.trained} trained, {each.queued} queued, {each.dropped} dropped"
            yield Violation("the books balance", f"{each.source} at {each.at:.3f}: {sums}")


def _grouped(records: Iterable[Of]) -> dict[str, list[Of]]:
    groups: dict[str, list[Of]] = defaultdict(list)
    for record in records:
        groups[record.task_id].append(record)
    return dict(groups)
