"""The tables, version by version. A released version is never changed; a new one is added."""

import secrets
from typing import Any

from parlmesh.errors import FailedPrecondition

from .database import Database

_SECONDS = 60.0

# One row per batch, never updated: deletions take a range at the start, which frequent vacuuming frees for reuse
# immediately. Batches are sealed and hardly compressible, so PostgreSQL need not try.
_FIRST = """
CREATE TABLE parlmesh.leader (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL DEFAULT 0 UNIQUE,
    holder text NOT NULL DEFAULT '',
    address text NOT NULL DEFAULT '',
    until timestamptz NOT NULL DEFAULT '-infinity',
    starts bigint NOT NULL DEFAULT 0,
    identity bigint NOT NULL,
    generation bigint NOT NULL DEFAULT 0,
    covered bigint NOT NULL DEFAULT 0,
    parts bigint NOT NULL DEFAULT 0,
    settled bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE TABLE parlmesh.journal (
    id bigint PRIMARY KEY, epoch bigint NOT NULL, batch bytea NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 2000
);
CREATE TABLE parlmesh.snapshot (
    generation bigint NOT NULL, position bigint NOT NULL, batch bytea NOT NULL, PRIMARY KEY (generation, position)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 200
);
ALTER TABLE parlmesh.journal ALTER batch SET STORAGE EXTERNAL;
ALTER TABLE parlmesh.snapshot ALTER batch SET STORAGE EXTERNAL;
INSERT INTO parlmesh.leader (identity) VALUES ({identity});
"""

MIGRATIONS = (_FIRST,)
VERSION = len(MIGRATIONS)


def migrate(database: Database) -> tuple[int, int]:
    """Upgrades the tables to this release's version in one transaction; returns the version before and after."""
    return database.lane().run(_migrate, _SECONDS)


async def version_of(connection: Any) -> int:
    """Version of the tables; 0 = there are none."""
    if await connection.fetchval("SELECT to_regclass('parlmesh.migrations')") is None:
        return 0
    return int(await connection.fetchval("SELECT coalesce(max(version), 0) FROM parlmesh.migrations"))


async def check_version(connection: Any) -> None:
    """Raises FailedPrecondition unless the tables have this release's version."""
    found = await version_of(connection)
    if found < VERSION:
        raise FailedPrecondition(
            f"the database's tables have version {found}, this release needs {VERSION}; run `parlmesh store migrate`",
            reason="STORE_NOT_MIGRATED",
        )
    if found > VERSION:
        raise _newer(found)


async def _migrate(connection: Any) -> tuple[int, int]:
    async with connection.transaction():
        await connection.execute("CREATE SCHEMA IF NOT EXISTS parlmesh")
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS parlmesh.migrations "
            "(version int PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now())"
        )
        # Concurrent migrations take turns; schedulers only read this table.
        await connection.execute("LOCK TABLE parlmesh.migrations IN EXCLUSIVE MODE")
        before = await version_of(connection)
        if before > VERSION:
            raise _newer(before)
        for version, statements in enumerate(MIGRATIONS[before:], before + 1):
            await connection.execute(statements.format(identity=secrets.randbits(62) + 1))
            await connection.execute("INSERT INTO parlmesh.migrations (version) VALUES ($1)", version)
    return before, VERSION


def _newer(found: int) -> FailedPrecondition:
    return FailedPrecondition(
        f"the database's tables have version {found} and this release supports {VERSION}; use a newer release",
        reason="STORE_TOO_NEW",
    )
