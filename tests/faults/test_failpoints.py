"""A crash at every failpoint, in many seeded schedules: what a restart finds is what was acknowledged."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler import failpoints
from scheduler.simulation.crashes import run_crashes

FEW, MANY = 20, 200
PLACES = failpoints.RECORDING


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: a copy of the files is the crash, and no disk needs to be waited for."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as found:
        yield Path(found)


def crash_often(place: str, seeds: range, folder: Path) -> int:
    crashes = 0
    for seed in seeds:
        try:
            crashes += run_crashes(seed, place, folder / str(seed))
        except Exception as error:
            pytest.fail(f"{place}, seed {seed}: {type(error).__name__}: {error}")
    return crashes


@pytest.mark.parametrize("place", PLACES)
def test_a_crash_at_any_step_of_recording_leaves_what_was_acknowledged(place: str, folder: Path) -> None:
    # The crash at the end of each schedule is one more.
    assert crash_often(place, range(FEW), folder) > 2 * FEW, f"{place} was passed"


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_two_hundred_schedules_of_crashes_leave_what_was_acknowledged(place: str, folder: Path) -> None:
    assert crash_often(place, range(1000, 1000 + MANY), folder) > 2 * MANY, f"{place} was passed"
