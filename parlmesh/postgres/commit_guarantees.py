"""Checks how durable a database's commits are, and so whether a failover can lose any. Changes nothing."""

from dataclasses import dataclass
from typing import Any

from .database import Database
from .schema import VERSION, version_of

_SECONDS = 5.0
_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names")


@dataclass(frozen=True, slots=True)
class Promises:
    """Durability settings as the database reports them."""

    schema_version: int
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    synchronous_standby_names: str
    standbys: tuple[str, ...]
    """State of each connected standby: sync, quorum, potential or async."""
    leader: str
    """Address of the leading scheduler; empty = none leads."""

    def said(self) -> str:
        """A readable summary."""
        leads = f"{self.leader} leads" if self.leader else "no scheduler leads"
        return f"tables of version {self.schema_version}, {leads}, {self._mode()}"

    def advice(self) -> str:
        """What to do; empty when a failover loses nothing."""
        if self.schema_version != VERSION:
            return f"this release needs version {VERSION}: run `parlmesh store migrate`"
        if not self.fsync or not self.full_page_writes:
            return "set fsync and full_page_writes to on: a power cut would lose or damage acknowledged tasks"
        if self.synchronous_standby_names and not self._synchronous():
            return (
                "synchronous_standby_names is set and no synchronous standby is connected: every write waits; bring "
                "one back, and do not cancel waiting writes, or they count as done on a single machine"
            )
        if self.standbys and not self._synchronous():
            return (
                "a failover to an asynchronous standby loses the acknowledged tasks within its lag: name it in "
                "synchronous_standby_names, or accept it"
            )
        return ""

    def _synchronous(self) -> int:
        return sum(state in ("sync", "quorum") for state in self.standbys)

    def _mode(self) -> str:
        if self._synchronous():
            one = "; it is the only one, so its loss stops all writes" if len(self.standbys) == 1 else ""
            return f"{self._synchronous()} of {len(self.standbys)} standbys synchronous{one}"
        return f"{len(self.standbys)} asynchronous standbys" if self.standbys else "no standby database"


def ask(database: Database) -> Promises:
    return database.lane().run(_ask, _SECONDS)


async def _ask(connection: Any) -> Promises:
    values = {name: await connection.fetchval("SELECT current_setting($1)", name) for name in _SETTINGS}
    standbys = await connection.fetch("SELECT coalesce(sync_state, 'unknown') AS state FROM pg_stat_replication")
    version = await version_of(connection)
    leader = None
    if version:
        leader = await connection.fetchval("SELECT address FROM parlmesh.leader WHERE until > clock_timestamp()")
    return Promises(
        version,
        values["fsync"] == "on",
        values["full_page_writes"] == "on",
        values["synchronous_commit"],
        values["synchronous_standby_names"],
        tuple(row["state"] for row in standbys),
        leader or "",
    )
