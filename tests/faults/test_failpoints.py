"""A crash at every failpoint, in many seeded schedules: a restart finds everything that was acknowledged."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parlmesh.postgres.connection_settings import Target
from parlmesh.testing.postgres import Cluster, query
from scheduler import failpoints
from scheduler.simulation import Violation
from scheduler.simulation.crashes import crash_on, run_crashes
from scheduler.store import SqliteStore, Store
from scheduler.store.committer import Committer
from scheduler.store.postgres import PostgresStore

FEW, MANY = 20, 200
PLACES = (*failpoints.RECORDING, *failpoints.COMPACTION)


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory if possible: a copy of the files is the crash, so there is no need to wait for a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as found:
        yield Path(found)


def crash_often(place: str, schedules: int, first_seed: int, folder: Path) -> None:
    """Runs until this many schedules have crashed at the place."""
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


class Tables:
    """A PostgreSQL store: a crash is a copy of its rows."""

    NAMES = ("leader", "journal", "snapshot")

    def __init__(self, cluster: Cluster) -> None:
        self._live, self._copy = cluster.database(), cluster.database()

    def store(self, compact_records: int) -> Store:
        return PostgresStore(Target(self._live), compact_records=compact_records, lease_seconds=60.0)

    def freeze(self, number: int) -> Callable[[], Store]:
        (kept,) = query(
            self._live,
            "SELECT " + ", ".join(f"(SELECT json_agg({name}) FROM parlmesh.{name}) AS {name}" for name in self.NAMES),
        )

        def reopen() -> Store:
            statements = [f"TRUNCATE {', '.join(f'parlmesh.{name}' for name in self.NAMES)}"]
            for name in self.NAMES:
                rows = (kept[name] or "[]").replace("'", "''")
                source = f"json_populate_recordset(NULL::parlmesh.{name}, '{rows}')"
                statements.append(f"INSERT INTO parlmesh.{name} SELECT * FROM {source}")
            # Do not wait for the dead leader's lease.
            query(self._copy, *statements, "UPDATE parlmesh.leader SET until = '-infinity'")
            return PostgresStore(Target(self._copy))

        return reopen


@pytest.mark.parametrize("place", [failpoints.BEFORE_COMMIT, failpoints.COMPACT_AFTER_SWITCH])
def test_a_crash_leaves_what_was_acknowledged_in_postgresql(place: str, postgres: Cluster) -> None:
    assert crash_on(Tables(postgres), 1, place) > 0


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_twenty_schedules_of_crashes_leave_what_was_acknowledged_in_postgresql(place: str, postgres: Cluster) -> None:
    assert sum(crash_on(Tables(postgres), seed, place) for seed in range(FEW)) > 0


def crash_until_noticed(place: str, folder: Path) -> None:
    for seed in range(FEW):
        run_crashes(seed, place, folder / str(seed))


def test_a_decision_announced_before_it_is_recorded_is_noticed(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Committer, "after_commit", lambda self, release: release())
    with pytest.raises(Violation, match="a crash at before_commit"):
        crash_until_noticed(failpoints.BEFORE_COMMIT, folder)


def test_a_missing_record_is_noticed(folder: Path, monkeypatch: Any) -> None:
    append = SqliteStore.append
    monkeypatch.setattr(SqliteStore, "append", lambda self, batch, records: append(self, b"", 0))
    with pytest.raises(Violation, match="a crash at after_commit"):
        crash_until_noticed(failpoints.AFTER_COMMIT, folder)
