"""A crash at every failpoint, in many seeded schedules: what a restart finds is what was acknowledged."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import failpoints
from scheduler.simulation import Violation
from scheduler.simulation.crashes import run_crashes
from scheduler.store import SqliteStore
from scheduler.store.committer import Committer

FEW, MANY = 20, 200
PLACES = (*failpoints.RECORDING, *failpoints.COMPACTION)


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: a copy of the files is the crash, and no disk needs to be waited for."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as found:
        yield Path(found)


def crash_often(place: str, schedules: int, first_seed: int, folder: Path) -> None:
    """Until so many schedules have crashed at the place."""
    done = 0
    for seed in range(first_seed, first_seed + 5 * schedules):
        try:
            done += run_crashes(seed, place, folder / str(seed)) > 0
        except Exception as error:
            pytest.fail(f"{place}, seed {seed}: {type(error).__name__}: {error}")
        if done == schedules:
            return
    pytest.fail(f"{place} was passed in {done} of {5 * schedules} schedules")


@pytest.mark.parametrize("place", PLACES)
def test_a_crash_at_any_step_of_recording_leaves_what_was_acknowledged(place: str, folder: Path) -> None:
    crash_often(place, FEW, 0, folder)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_two_hundred_schedules_of_crashes_leave_what_was_acknowledged(place: str, folder: Path) -> None:
    crash_often(place, MANY, 1000, folder)


def crash_until_noticed(place: str, folder: Path) -> None:
    for seed in range(FEW):
        run_crashes(seed, place, folder / str(seed))


def test_a_decision_that_is_told_before_it_is_recorded_is_noticed(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Committer, "after_commit", lambda self, release: release())
    with pytest.raises(Violation, match="a crash at before_commit"):
        crash_until_noticed(failpoints.BEFORE_COMMIT, folder)


def test_a_record_that_is_left_out_is_noticed(folder: Path, monkeypatch: Any) -> None:
    append = SqliteStore.append
    monkeypatch.setattr(SqliteStore, "append", lambda self, batch, records: append(self, b"", 0))
    with pytest.raises(Violation, match="a crash at after_commit"):
        crash_until_noticed(failpoints.AFTER_COMMIT, folder)
