import asyncio

import pytest

from parlmesh.client import Outcome
from parlmesh.client.connection.pending_outcomes import UnclaimedOutcomes
from parlmesh.errors import DeadlineExceeded
from parlmesh.v1 import task_pb2 as pb
from parlmesh.wire import payload_to_proto


def end(task_id: str, text: str = "") -> Outcome:
    result = payload_to_proto({"text": text})
    return Outcome(task_id, 0, pb.Outcome(task_id=task_id, state=pb.TASK_STATE_SUCCEEDED, result=result))


def claims(most_outcomes: int = 10, most_bytes: int = 10_000) -> UnclaimedOutcomes:
    return UnclaimedOutcomes(most_outcomes=most_outcomes, most_bytes=most_bytes)


def test_an_outcome_is_kept_for_the_first_who_asks() -> None:
    kept = claims()
    outcome = end("a")
    kept.settle([outcome])
    assert kept.claim("a") is outcome
    assert kept.claim("a") is None


async def test_everyone_who_waits_gets_the_outcome_and_nothing_is_kept() -> None:
    kept = claims()
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(kept.wait("a", 10)) for _ in range(3)]
        group.create_task(_soon(kept, end("a")))
    assert {wait.result().task_id for wait in waits} == {"a"}
    assert kept.claim("a") is None


async def _soon(kept: UnclaimedOutcomes, outcome: Outcome) -> None:
    await asyncio.sleep(0)
    kept.settle([outcome])


async def test_a_wait_ends_at_its_deadline_and_the_outcome_is_kept_for_the_next() -> None:
    kept = claims()
    with pytest.raises(DeadlineExceeded, match=r'task "a" has no outcome after 0\.001 s; it still runs or waits'):
        await kept.wait("a", 0.001)
    kept.settle([end("a")])
    assert kept.claim("a") is not None


def test_the_oldest_are_dropped_and_counted_when_there_are_too_many() -> None:
    kept = claims(most_outcomes=2)
    for name in "abc":
        kept.settle([end(name)])
    assert kept.dropped == 1
    assert [kept.claim(name) is None for name in "abc"] == [True, False, False]


def test_the_oldest_are_dropped_and_counted_when_they_are_too_large() -> None:
    kept = claims(most_bytes=1000)
    kept.settle([end("a", "x" * 600)])
    kept.settle([end("b", "x" * 600)])
    assert (kept.dropped, kept.claim("a")) == (1, None)
    assert kept.claim("b") is not None
    kept.settle([end("c", "x" * 600)])
    assert kept.dropped == 1  # what was claimed has made room
