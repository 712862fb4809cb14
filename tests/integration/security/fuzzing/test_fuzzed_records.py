"""Journals with valid seals and invalid records: only the record itself is lost, and the scheduler keeps working."""

import random
import time

import pytest

from parlmesh.errors import FleetError
from scheduler.config import SchedulerConfig
from scheduler.core.actors.actor_sessions import Hello
from scheduler.core.core import Core
from scheduler.core.task import Task
from scheduler.journal import record_reader, records
from tests.integration.security.fuzzing.fuzzing_time import LENGTHS, first_seed, seconds_of
from tests.integration.security.fuzzing.messages import Fuzzer
from tests.scheduler.conftest import Harness

HEAD = 13
"""Bytes of a record's head: kind, length, number."""


def sound_journal() -> list[bytes]:
    """Records of every kind: tasks that wait, run, returned, failed and ended, actors, kinds, strikes."""
    harness = Harness(strikes={"limit": 2})
    for number in range(12):
        dependencies = (f"t{number - 1}",) if number % 5 == 4 else ()
        harness.submit(Task(f"t{number}", "noop", b"payload", 2, dependencies))
    first = harness.connect("a", node_id="n1", slots=2)
    done, failed = harness.take(first)[:2]
    harness.finish(first, done, result=b"result")
    harness.fail(first, failed)
    second = harness.connect("b", node_id="n2", slots=3)
    harness.core.strike(second, "rubbish", harness.now)
    harness.cancel("t11")
    harness.disconnect(second)
    harness.pass_time(30.0, alive=[first])
    return list(harness.journal)


def damaged(fuzzer: Fuzzer, batches: list[bytes]) -> tuple[list[bytes], int]:
    """A well-formed batch with one changed record, and the number of its task."""
    place = fuzzer.random.choice([at for at, batch in enumerate(batches) if batch])
    found = list(record_reader.split(batches[place]))
    at = fuzzer.random.randrange(len(found))
    kind, number, raw = found[at]
    body = fuzzer.broken(raw[HEAD:])[: 1 << 16]
    if fuzzer.random.random() < 0.2:
        kind = fuzzer.random.randrange(256)
    return [*batches[:place], joined(found, at, kind, number, body), *batches[place + 1 :]], number


def joined(found: list[tuple[int, int, bytes]], at: int, kind: int, number: int, body: bytes) -> bytes:
    """The records of a batch with one replaced."""
    head = bytes([kind]) + len(body).to_bytes(4, "little") + number.to_bytes(8, "little")
    return b"".join([*(one[2] for one in found[:at]), head + body, *(one[2] for one in found[at + 1 :])])


def start(batches: list[bytes]) -> Core:
    """Recovers as a scheduler does, seals included."""
    core = Core(SchedulerConfig(), now=5000.0, wall_time=5000.0, rng=random.Random(1), lease_floor=2 << 32)
    core.recover([records.unseal(records.seal(batch), "batch") for batch in batches], 5000.0)
    return core


def work(core: Core) -> None:
    """An actor joins, takes new work, and some time passes."""
    core.connect(Hello(1, "fresh", "n9", 1, 4, ("noop",)), 5001.0)
    core.report(1, 5001.0, credits=8)
    core.submit([Task("", "noop", b"", 2)], 5002.0)
    for step in range(40):
        core.tick(5002.0 + step, 5002.0 + step)
    core.take_actions()


def test_a_task_record_damaged_into_one_that_forgets_tasks_forgets_nothing() -> None:
    batches = sound_journal()
    ended = {task.task_id for task in start(batches).life.tasks.values() if task.final}
    assert ended
    place = max(at for at, batch in enumerate(batches) if batch)
    found = list(record_reader.split(batches[place]))
    forgets = (1000).to_bytes(4, "little")
    changed = joined(found, 0, records.RecordKind.FORGOTTEN, 7, forgets)
    core = start([*batches[:place], changed, *batches[place + 1 :]])
    assert ended <= set(core.life.tasks)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_damaged_record_is_lost_alone(length: str) -> None:
    batches = sound_journal()
    sound = {task.number: task.task_id for task in start(batches).life.tasks.values()}
    assert len(sound) == 12
    first = first_seed(length)
    end, seed, missing = time.monotonic() + seconds_of("records", length), first, 0
    while time.monotonic() < end or seed < first + 50:
        seed += 1
        journal, number = damaged(Fuzzer(seed), batches)
        try:
            core = start(journal)
            others = {task.number: task.task_id for task in core.life.tasks.values() if task.number != number}
            work(core)
        except FleetError as error:
            raise AssertionError(f"seed {seed}: refused: {error.message}") from error
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        # A record without a task's number may be one that forgets tasks.
        lost = {one: name for one, name in sound.items() if number and one != number and others.get(one) != name}
        # Two tasks with one id: which record is wrong cannot be known.
        lost = {
            one: name
            for one, name in lost.items()
            if name not in core.life.tasks or core.life.tasks[name].number != number
        }
        assert not lost, f"seed {seed}: a record of task {number} cost {lost}"
        missing += len(core.life.tasks) < len(sound)
    print(f"records: {seed - first} journals, {missing} with a task less")
