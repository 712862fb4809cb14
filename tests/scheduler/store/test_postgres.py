"""The shared store: who may write, commits with an unknown outcome, and what a standby knows."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from parlmesh.errors import FailedPrecondition
from parlmesh.postgres.commit_guarantees import ask
from parlmesh.postgres.connection_settings import Target
from parlmesh.postgres.database import Database
from parlmesh.postgres.schema import VERSION, migrate
from parlmesh.testing.postgres import Cluster, query
from scheduler.journal.record_reader import decode
from scheduler.journal.records import DamagedJournal, Submitted
from scheduler.store import Deposed
from scheduler.store.postgres import PostgresStore
from tests.scheduler.store.test_stores import _batch

Make = Callable[..., PostgresStore]


@pytest.fixture
def url(postgres: Cluster) -> str:
    return postgres.database()


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    made: list[PostgresStore] = []

    def make(**settings: Any) -> PostgresStore:
        made.append(PostgresStore(Target(url), **{"address": f"s{len(made)}:1", **settings}))
        return made[-1]

    yield make
    for store in made:
        store.close()


def lapse(url: str) -> None:
    """Ends the lease, as time would."""
    query(url, "UPDATE parlmesh.leader SET until = '-infinity'")


def numbers(url: str) -> list[int]:
    return [row["id"] for row in query(url, "SELECT id FROM parlmesh.journal ORDER BY id")]


def led(store: PostgresStore) -> PostgresStore:
    list(store.open(1.0).batches)
    return store


def test_a_deposed_leader_writes_deletes_and_renews_nothing(make: Make, url: str) -> None:
    old = led(make(compact_records=1))
    old.append(_batch(0), 1)
    compaction = old.compact()
    next(compaction)
    lapse(url)
    new = led(make())
    before = query(url, "SELECT epoch, holder, generation, covered, identity FROM parlmesh.leader")
    with pytest.raises(Deposed):
        old.append(_batch(1), 1)
    with pytest.raises(Deposed):
        list(compaction)
    with pytest.raises(Deposed):
        old.renew_identity()
    old.close()
    assert query(url, "SELECT epoch, holder, generation, covered, identity FROM parlmesh.leader") == before
    assert numbers(url) == [1]
    new.append(_batch(2), 1)
    assert numbers(url) == [1, 2]


def test_while_one_leads_another_is_refused_with_its_address(make: Make) -> None:
    led(make())
    with pytest.raises(FailedPrecondition, match="s0:1") as caught:
        make().open(1.0)
    assert caught.value.reason == "STORE_IN_USE"


def test_a_commit_whose_answer_was_lost_is_found_and_counted_once(
    make: Make, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = led(make())
    append = store._rows.append

    def append_and_lose(number: int, sealed: bytes) -> None:
        append(number, sealed)
        raise OSError("the connection broke after the commit")

    monkeypatch.setattr(store._rows, "append", append_and_lose)
    with pytest.raises(OSError, match="after the commit"):
        store.append(_batch(0), 1)
    monkeypatch.undo()
    store.append(_batch(0), 1)
    store.append(_batch(1), 1)
    assert numbers(url) == [1, 2]
    assert query(url, "SELECT settled FROM parlmesh.leader")[0]["settled"] == 1


def test_a_warning_of_the_database_is_no_success(make: Make, url: str) -> None:
    """As PostgreSQL answers a commit that a standby may lack: success, with a warning."""
    store = led(make())
    query(
        url,
        """CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE WARNING 'The transaction might not have been replicated'; RETURN NEW; END $$""",
        "CREATE TRIGGER warn BEFORE INSERT ON parlmesh.journal FOR EACH ROW EXECUTE FUNCTION warn()",
    )
    with pytest.raises(OSError, match="might not have been replicated"):
        store.append(_batch(0), 1)
    query(url, "DROP TRIGGER warn ON parlmesh.journal")
    store.append(_batch(0), 1)
    assert numbers(url) == [1]


def test_a_database_that_went_back_is_noticed_and_is_another_memory(make: Make, url: str) -> None:
    store = led(make())
    for number in range(3):
        store.append(_batch(number), 1)
    identity = store.identity
    query(url, "DELETE FROM parlmesh.journal WHERE id = 3")
    with pytest.raises(DamagedJournal, match="lost journal row 3"):
        store.append(_batch(3), 1)
    store.close()
    again = led(make())
    assert numbers(url) == [1, 2]
    assert again.identity != identity


def test_a_standby_has_read_all_when_it_takes_over_even_over_compactions(make: Make, url: str) -> None:
    leader, standby = led(make(compact_records=1)), make()
    for number in range(10):
        leader.append(_batch(number), 1)
        if number % 3 == 2:
            list(leader.compact())
        if number % 2:
            assert standby.stand_by(1.0) is None
    assert standby.leader == "s0:1"
    leader.append(_batch(10), 1)
    lapse(url)
    opened = standby.stand_by(1.0)
    assert opened is not None
    assert opened.warm is not None
    records = [record for part in opened.warm.write(1 << 20) for record in decode(part)]
    assert [record.task.task_id for record in records if isinstance(record, Submitted)] == [f"t{n}" for n in range(11)]
    standby.append(_batch(11), 1)
    with pytest.raises(Deposed):
        leader.append(_batch(12), 1)


def test_a_standby_that_had_read_more_than_there_is_left_begins_another_memory(make: Make, url: str) -> None:
    leader, standby = led(make()), make()
    for number in range(3):
        leader.append(_batch(number), 1)
    assert standby.stand_by(1.0) is None
    query(url, "DELETE FROM parlmesh.journal WHERE id = 3")
    lapse(url)
    opened = standby.stand_by(1.0)
    assert opened is not None
    assert opened.warm is not None
    assert opened.warm.tasks == 2
    assert standby.identity != leader.identity


def test_tables_are_made_once_and_a_store_without_them_says_so(postgres: Cluster) -> None:
    postgres.sql("postgres", "CREATE DATABASE bare")
    target = Target(postgres.url("bare"))
    store = PostgresStore(target)
    with pytest.raises(FailedPrecondition, match="parlmesh store migrate"):
        store.open(1.0)
    store.close()
    database = Database(target)
    assert migrate(database) == (0, VERSION)
    assert migrate(database) == (VERSION, VERSION)
    promises = ask(database)
    assert (promises.schema_version, promises.standbys, promises.leader) == (VERSION, (), "")
    # The test cluster does not wait for its disk.
    assert "fsync" in promises.advice()
    query(target.url, "INSERT INTO parlmesh.migrations VALUES (99)")
    with pytest.raises(FailedPrecondition, match="newer release"):
        migrate(database)
    database.close()
