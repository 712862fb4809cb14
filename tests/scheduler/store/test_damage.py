"""Outside damage to a store's files is an error, never an empty start or an acknowledgement."""

import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from parlmesh.errors import FailedPrecondition
from scheduler import failpoints
from scheduler.journal.records import DamagedJournal
from scheduler.store import SqliteStore, sqlite_tables
from scheduler.store.protocol import next_floor
from tests.scheduler.store.test_stores import _batch, task_ids

ROWS = 30
ALL = [f"t{number}" for number in range(ROWS)]


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that was closed cleanly."""
    path = tmp_path / "s.sqlite"
    store = filled(path)
    store.close()
    return path


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A store as kill -9 leaves it: everything is in the log."""
    source, copy = tmp_path / "before" / "s.sqlite", tmp_path / "after" / "s.sqlite"
    store = filled(source)
    copy.parent.mkdir()
    for ending in ("", "-wal", ".witness"):
        shutil.copy(f"{source}{ending}", f"{copy}{ending}")
    store.close()
    assert wal(copy).stat().st_size > 0
    return copy


def filled(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    assert list(store.open(1.0).batches) == []
    for number in range(ROWS):
        store.append(_batch(number), 1)
    return store


def found(path: Path, *, repair: bool = False) -> list[str]:
    store = SqliteStore(path, repair=repair)
    try:
        return task_ids(store.open(1.0).batches)
    finally:
        store.close()


def wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_an_untouched_store_misses_nothing(path: Path, killed: Path) -> None:
    assert found(path) == ALL
    assert found(killed) == ALL


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: cut(path, 0),
        lambda path: cut(path, path.stat().st_size // 2),
        lambda path: path.write_bytes(b"something else entirely" * 1000),
        lambda path: replace_by_a_new_store(path),
    ],
    ids=["deleted", "empty", "cut in half", "overwritten", "replaced"],
)
def test_a_store_that_is_gone_or_cut_is_an_error_and_repair_says_what_is_left(
    path: Path, damage: Callable[[Path], None]
) -> None:
    damage(path)
    for _ in range(2):
        with pytest.raises(DamagedJournal, match=r"store\.repair"):
            found(path)
    assert set(found(path, repair=True)) < set(ALL)
    # Once repaired, it is an ordinary store.
    store = SqliteStore(path)
    list(store.open(1.0).batches)
    store.append(_batch(99), 1)
    store.close()
    assert "t99" in found(path)


def replace_by_a_new_store(path: Path) -> None:
    other = path.with_name("other.sqlite")
    store = SqliteStore(other)
    list(store.open(1.0).batches)
    store.close()
    other.replace(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda log: log.unlink(),
        lambda log: cut(log, 0),
        lambda log: cut(log, log.stat().st_size - 100),
        lambda log: cut(log, log.stat().st_size // 2),
        lambda log: flip(log, 10 * 8),
        lambda log: flip(log, log.stat().st_size * 4),
        lambda log: flip(log, log.stat().st_size * 8 - 3000),
    ],
    ids=["deleted", "empty", "end cut", "half cut", "flip in its head", "flip in the middle", "flip at its end"],
)
def test_a_log_that_lost_acknowledged_rows_is_an_error_and_repair_keeps_the_others(
    killed: Path, damage: Callable[[Path], None]
) -> None:
    damage(wal(killed))
    with pytest.raises(DamagedJournal):
        found(killed)
    left = found(killed, repair=True)
    assert left == ALL[: len(left)]
    assert len(left) < ROWS


@pytest.mark.parametrize("seed", range(4))
def test_no_flipped_bit_loses_a_task_in_silence(path: Path, killed: Path, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    noticed = 0
    for number in range(25):
        place = tmp_path / f"{number}" / "s.sqlite"
        place.parent.mkdir()
        source = rng.choice((path, killed))
        for ending in ("", "-wal", ".witness"):
            if Path(f"{source}{ending}").exists():
                shutil.copy(f"{source}{ending}", f"{place}{ending}")
        victim = rng.choice([place, wal(place)] if source is killed else [place])
        flip(victim, rng.randrange(victim.stat().st_size * 8))
        try:
            assert found(place) == ALL
        except (DamagedJournal, OSError):
            noticed += 1
    assert noticed


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.rename(path.with_name("moved")),
        lambda path: wal(path).rename(path.with_name("moved-wal")),
        lambda path: cut(path, 100),
        lambda path: cut(wal(path), 0),
        lambda path: replace_by_a_new_store(path),
    ],
    ids=["deleted", "log deleted", "cut", "log cut", "replaced"],
)
def test_a_store_that_vanishes_while_running_takes_nothing_more(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "s.sqlite"
    store = filled(path)
    store.check()
    damage(path)
    with pytest.raises(OSError, match="while the scheduler ran"):
        store.append(_batch(99), 1)
    with pytest.raises(OSError, match="while the scheduler ran"):
        store.check()
    store._custody.release()


def test_a_store_that_is_put_back_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    store = filled(path)
    path.rename(tmp_path / "away")
    with pytest.raises(OSError, match="gone"):
        store.append(_batch(98), 1)
    (tmp_path / "away").rename(path)
    store.append(_batch(99), 1)
    store.close()
    assert found(path) == [*ALL, "t99"]


def test_a_deleted_lock_file_lets_nobody_in(path: Path) -> None:
    first = SqliteStore(path)
    assert task_ids(first.open(1.0).batches) == ALL
    path.with_name(path.name + ".lock").unlink()
    with pytest.raises(FailedPrecondition, match="in use"):
        SqliteStore(path).open(1.0)
    first.close()
    assert found(path) == ALL


def test_a_missing_part_of_the_snapshot_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    store = filled(path)
    for _ in store.compact():
        continue
    store.close()
    execute(path, "DELETE FROM snapshot WHERE position = 0")
    with pytest.raises(DamagedJournal, match="part 0"):
        found(path)
    assert found(path, repair=True) == []


def test_numbers_that_were_changed_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    store = filled(path)
    for _ in store.compact():
        continue
    store.close()
    execute(path, "UPDATE meta SET value = value + 1 WHERE key = 'generation'")
    with pytest.raises(DamagedJournal, match="checksum"):
        found(path)


@pytest.mark.parametrize("key", ["generation", "covered", "parts", "check"])
@pytest.mark.parametrize("value", ["text", b"octets", 1e308, -7, 1 << 62], ids=repr)
def test_repair_goes_by_no_numbers_that_were_changed(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "s.sqlite"
    store = filled(path)
    for _ in store.compact():
        continue
    store.append(_batch(ROWS), 1)
    store.close()
    execute(path, f"UPDATE meta SET value = ? WHERE key = '{key}'", value)
    with pytest.raises(DamagedJournal, match=r"store\.repair"):
        found(path)
    assert found(path, repair=True) == [*ALL, f"t{ROWS}"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("journal (id", "journal (ib"),
        ("batch BLOB", "bitch BLOB"),
        ("generation INTEGER", "genera\nion INTEGER"),
        ("value INTEGER NOT NULL)", "vague INTEGER NOT NULL)"),
        ("batch BLOB NOT NULL)", "batch BLOB COLLATE no)"),
    ],
)
def test_a_store_whose_schema_is_another_is_damaged(path: Path, before: str, after: str) -> None:
    data = path.read_bytes()
    assert before.encode() in data
    path.write_bytes(data.replace(before.encode(), after.encode().ljust(len(before))))
    with pytest.raises(DamagedJournal, match=r"^[^\n]*store\.repair[^\n]*$"):
        found(path)
    left = found(path, repair=True)
    assert set(left) <= set(ALL)
    assert found(path) == left


def test_a_store_in_a_format_of_sqlite_that_cannot_be_read_is_damaged(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(44)
        file.write((77).to_bytes(4, "big"))
    with pytest.raises(DamagedJournal, match=r"store\.repair"):
        found(path)
    assert set(found(path, repair=True)) <= set(ALL)


def test_a_store_that_is_locked_is_not_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_tables, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match="locked"):
            found(path)
    assert found(path) == ALL


def test_a_store_of_the_release_before_is_read_and_grows(path: Path) -> None:
    """It has no witness, no number of parts, no checksum of its numbers, and a whole lease floor."""
    path.with_name(path.name + ".witness").unlink()
    execute(path, "DELETE FROM meta WHERE key NOT IN ('format', 'generation', 'covered')")
    execute(path, "INSERT INTO meta VALUES ('lease_floor', ?)", 1_700_000_000 << 32)
    store = SqliteStore(path)
    opened = store.open(1.0)
    assert opened.lease_floor > 1_700_000_000 << 32
    assert task_ids(opened.batches) == ALL
    store.close()
    assert found(path) == ALL


@pytest.mark.parametrize("compacted", [False, True])
def test_of_a_file_that_lost_its_last_page_repair_keeps_the_rest_and_counts_what_is_gone(
    tmp_path: Path, compacted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.sqlite"
    store = SqliteStore(path)
    assert list(store.open(1.0).batches) == []
    for number in range(100):
        store.append(_batch(number, b"x" * 200), 1)
    if compacted:
        list(store.compact())
        # Space that the compaction freed is behind the snapshot.
        store.tables.execute("VACUUM")
    store.close()
    os.truncate(path, path.stat().st_size - (8192 if compacted else 4096))
    with pytest.raises(DamagedJournal, match=r"store\.repair"):
        found(path)
    kept = found(path, repair=True)
    assert 60 <= len(kept) < 100
    assert kept == [f"t{number}" for number in range(len(kept))]
    (repaired,) = [record for record in caplog.records if record.getMessage() == "journal_repaired"]
    assert repaired.levelname == "ERROR"
    fields = repaired.__dict__["parlmesh_fields"]
    assert fields["tasks"] == len(kept)
    assert 1 <= fields["left_out"] <= 2 if compacted else 100 - len(kept) <= fields["left_out"] <= 102 - len(kept)
    assert found(path) == kept


@pytest.mark.parametrize("year", [2038, 2039, 2100, 2500])
def test_lease_floors_grow_in_any_year(path: Path, year: int) -> None:
    wall_time = (year - 1970) * 365.25 * 86400
    floors = []
    for _ in range(3):
        store = SqliteStore(path)
        floors.append(store.open(wall_time).lease_floor)
        store.close()
    assert floors[0] < floors[1] < floors[2] < 1 << 64
    assert floors[0] >= next_floor(0, 2_000_000_000.0)


def test_a_compaction_that_found_no_space_is_tried_again_and_leaves_nothing_behind(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "s.sqlite"
    store = SqliteStore(path, compact_records=10, clock=lambda: now[0])
    list(store.open(1.0).batches)
    for number in range(ROWS):
        store.append(_batch(number), 1)
    for place in failpoints.COMPACTION[:-2]:
        assert store.wants_compaction()
        failpoints.arm(f"{place}=error")
        with pytest.raises(OSError, match=place):
            list(store.compact())
        assert failpoints.passed[place] == 1
        assert not store.wants_compaction()
        store.append(_batch(100), 1)
        now[0] += 60.0
    failpoints.disarm()
    list(store.compact())
    assert not store.wants_compaction()
    assert store.tables.row("SELECT COUNT(DISTINCT generation) FROM snapshot") == (1,)
    store.close()
    assert found(path)[:ROWS] == ALL


@pytest.mark.parametrize("undone", [True, False])
def test_what_is_written_after_a_damaged_transaction_is_kept_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undone: bool
) -> None:
    path = tmp_path / "s.sqlite"
    store = SqliteStore(path, compact_records=10)
    list(store.open(1.0).batches)
    for number in range(ROWS):
        store.append(_batch(number), 1)
    execute, met = store.tables.execute, []

    def damaged(statement: str, *values: object) -> sqlite3.Cursor:
        if "INTO meta" in statement:
            met.append(store.tables.database.in_transaction)
            raise sqlite3.DatabaseError("database disk image is malformed")
        return execute(statement, *values)

    monkeypatch.setattr(store.tables, "execute", damaged)
    if not undone:
        monkeypatch.setattr(store.tables, "_undo", lambda: None)
    with pytest.raises(DamagedJournal, match="malformed"):
        list(store.compact())
    assert met == [True]
    if undone:
        store.append(_batch(ROWS), 1)
    else:
        with pytest.raises(OSError, match="a transaction that failed cannot be undone"):
            store.append(_batch(ROWS), 1)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT COUNT(*) FROM journal").fetchone() == (ROWS + undone,)
    store.close()


def test_a_real_lack_of_space_in_a_compaction_is_survived(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "s.sqlite"
    store = SqliteStore(path, compact_records=1, clock=lambda: now[0])
    list(store.open(1.0).batches)
    for number in range(40):
        store.append(_batch(number, body=b"x" * 100_000), 1)
    pages = store.tables.execute("PRAGMA page_count").fetchone()[0]
    # Room for a part or two.
    store.tables.execute(f"PRAGMA max_page_count = {pages + 600}")
    with pytest.raises(OSError, match="full"):
        list(store.compact())
    assert store.tables.row("SELECT COUNT(*) > 0 FROM snapshot") == (1,)
    store.tables.execute("PRAGMA max_page_count = 1000000")
    now[0] += 60.0
    list(store.compact())
    store.close()
    assert len(found(path)) == 40


def execute(path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(path) as database:
        database.execute(statement, values)
    database.close()
