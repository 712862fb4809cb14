"""The journal's encoding returns what was written, and detects damage."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.actions import Dismissed, Introduced, Kinds, Paused, Persist, Returned
from scheduler.core.task import Failure, Placement, Task, TaskState
from scheduler.journal.record_reader import decode, read_submitted, split
from scheduler.journal.records import DamagedJournal, Ended, Forgotten, Leased, Submitted, count, encode, seal, unseal

names = st.text(max_size=20)
seconds = st.one_of(st.none(), st.floats(0, 1e6))
small = st.integers(0, 2**32 - 1)
tasks = st.builds(
    Task,
    names,
    names,
    body=st.binary(max_size=50),
    priority=st.integers(1, 5),
    dependencies=st.lists(names, max_size=4).map(tuple),
    placement=st.builds(Placement, names, st.frozensets(st.tuples(names, names), max_size=3), st.just(0)),
    queue_timeout=seconds,
    run_timeout=seconds,
    max_attempts=small,
    submitter=names,
)


def persist(**parts: object) -> Persist:
    empty: dict[str, object] = {
        "time": 5.5,
        "submitted": [],
        "returned": [],
        "finished": [],
        "leased": [],
        "forgotten": 0,
        "paused": [],
    }
    return Persist(**{**empty, **parts})  # type: ignore[arg-type]


def fields(task: Task) -> tuple[object, ...]:
    names = ("task_id", "kind", "body", "priority", "dependencies", "placement", "queue_timeout", "run_timeout")
    return tuple(getattr(task, name) for name in (*names, "max_attempts", "submitter", "number"))


@given(tasks, st.integers(1, 2**63))
def test_a_submitted_task_reads_back_as_it_was(task: Task, number: int) -> None:
    task.number = number
    batch, records_count = encode(persist(submitted=[task]))
    (record,) = decode(batch)
    assert records_count == 1
    assert isinstance(record, Submitted)
    assert fields(record.task) == fields(task)
    assert record.time == 5.5


@given(
    tasks,
    st.sampled_from([TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.QUARANTINED]),
    st.binary(max_size=40),
    st.one_of(st.none(), st.builds(Failure, names, names, st.booleans())),
    names,
    small,
)
def test_a_finished_task_reads_back_as_it_was(
    task: Task, state: TaskState, result: bytes, failure: Failure | None, actor_id: str, attempts: int
) -> None:
    task.number, task.state, task.result, task.failure, task.actor_id = 7, state, result, failure, actor_id
    task.attempts, task.ran, task.submit_time, task.lease_time, task.end_time = attempts, 0.25, 10.0, 12.0, 13.0
    batch, _ = encode(persist(finished=[task]))
    assert list(decode(batch)) == [
        Ended(7, 5.5, state, attempts, 2.0 if attempts else 3.0, 0.25, actor_id, result, failure)
    ]


def test_records_of_one_event_come_in_the_order_of_replay() -> None:
    task = Task("t", "noop")
    task.number, task.lease_id, task.attempts, task.actor_id = 3, 99, 2, "a"
    batch, records_count = encode(
        persist(
            submitted=[task],
            returned=[Returned(3, 1, 1, 0, 2.5)],
            leased=[task],
            forgotten=4,
            paused=[Paused("a", True)],
            actors=[Introduced("ä", "node", 1 << 62, 10_000), Dismissed("b")],
            kinds=[Kinds(True, ("noop", "")), Kinds(False, ("echo",))],
        )
    )
    records = list(decode(batch))
    assert records_count == len(records) == 9
    assert records[1:] == [
        Returned(3, 1, 1, 0, 2.5),
        Leased(3, 99, 2, "a"),
        Forgotten(4),
        Paused("a", True),
        Introduced("ä", "node", 1 << 62, 10_000),
        Dismissed("b"),
        Kinds(True, ("noop", "")),
        Kinds(False, ("echo",)),
    ]
    assert [kind for kind, _, _ in split(batch)] == [1, 7, 2, 5, 6, 8, 9, 10, 10]


@given(st.lists(tasks, max_size=5))
def test_records_are_counted_and_tasks_read_as_decoding_reads_them(submitted: list[Task]) -> None:
    for number, task in enumerate(submitted):
        task.number = number + 1
    batch, records = encode(persist(submitted=submitted, forgotten=1))
    assert count(batch) == records == len(submitted) + 1
    names: dict[bytes, str] = {}
    for task, (_, _, raw) in zip(submitted, split(batch), strict=False):
        read, time = read_submitted(raw, names)
        assert (fields(read), time) == (fields(task), 5.5)


def test_a_return_of_an_older_journal_has_no_time() -> None:
    body = struct.pack("<III", 2, 1, 1)
    assert list(decode(struct.pack("<BIQ", 3, len(body), 7) + body)) == [Returned(7, 2, 1, 1, 0.0)]


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_flipped_bit_is_noticed(batch: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal(batch))
    position = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[position // 8] ^= 1 << position % 8
    with pytest.raises(DamagedJournal):
        unseal(bytes(sealed), "row 1")


def test_a_cut_batch_is_noticed() -> None:
    sealed = seal(b"some records")
    assert unseal(sealed, "row 1") == b"some records"
    for length in range(len(sealed)):
        with pytest.raises(DamagedJournal, match="row 1"):
            unseal(sealed[:length], "row 1")


def test_a_record_of_an_unknown_kind_is_refused() -> None:
    batch, _ = encode(persist(forgotten=1))
    with pytest.raises(DamagedJournal, match="newer scheduler"):
        list(decode(b"\x63" + batch[1:]))


@given(st.binary(max_size=100))
def test_noise_never_escapes_as_another_error(noise: bytes) -> None:
    try:
        list(decode(noise))
    except DamagedJournal:
        return
