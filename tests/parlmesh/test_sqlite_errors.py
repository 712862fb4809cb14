import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from parlmesh.dashboard.fleet_history import History, Sample
from parlmesh.errors import FleetError
from parlmesh.mapek.knowledge import Knowledge
from parlmesh.mapek.node.node_memory import NodeState
from scheduler.store.sqlite import SqliteStore


def knowledge(folder: Path) -> None:
    Knowledge(folder / "data.sqlite").__exit__()


def node_memory(folder: Path) -> None:
    with NodeState(folder, "n").transaction():
        pass


def fleet_history(folder: Path) -> None:
    History(folder / "data.sqlite").close()


def store(folder: Path) -> None:
    opened = SqliteStore(folder / "data.sqlite", synchronous="normal")
    try:
        list(opened.open(1_000.0).batches)
    finally:
        opened.close()


@pytest.mark.parametrize("opened", [knowledge, node_memory, fleet_history, store])
def test_a_schema_that_is_not_text_is_reported_as_damage_in_one_line(
    tmp_path: Path, opened: Callable[[Path], None]
) -> None:
    opened(tmp_path)
    (file,) = tmp_path.glob("*.sqlite")
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("CREATE TABLE zzz_name (a)")
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    # SQLite names the row with the damaged statement, and the name is not UTF-8.
    damaged = file.read_bytes().replace(b"zzz_namezzz_name", b"\xf4zz_name\xf4zz_name")
    file.write_bytes(damaged.replace(b"TABLE zzz_name", b"TABLE (((((((("))
    with closing(sqlite3.connect(file)) as database, pytest.raises(UnicodeDecodeError):
        database.execute("SELECT * FROM sqlite_schema")
    with pytest.raises(FleetError) as found:
        opened(tmp_path)
    assert str(file) in found.value.message
    assert "\n" not in found.value.message


def test_a_history_whose_file_fails_later_goes_on_in_memory_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = History(tmp_path / "history.sqlite")
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as other:
        other.execute("DROP TABLE samples")
        other.commit()
    for time in (10.0, 20.0):
        history.add(Sample(time, 1.0, 0, 0, 1, 0))
    assert [sample.time for sample in history.recent] == [10.0, 20.0]
    assert [record.message for record in caplog.records] == ["history_not_written"]
    history.close()
