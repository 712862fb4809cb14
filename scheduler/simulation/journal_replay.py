"""Checks that a restart restores the state: rebuilds a core from the journal and names every difference from the live
one.

For tests and simulations. Called between two events, when every decision is in the journal. Changes that a restart may
make are ignored on purpose: a back-off ends with it, a lost lease cannot be reclaimed, measured speeds are gone.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..core.actors.placement import Actor
from ..core.core import Core
from ..core.task import Task
from ..journal.compaction import Compactor
from ..journal.standby_core import Understudy
from ..store import SqliteStore

SHOWN = 300


def differences(core: Core, batches: Iterable[bytes], now: float) -> list[str]:
    """One sentence per difference; `now` is on the core's own clock."""
    copy = Core(core.config, now=now, wall_time=now + core.life.wall_offset)
    unreadable = copy.recover(batches, now)
    found = [f"the journal has something unreadable: {what}" for what in unreadable.described]
    return [*found, *_compare(core, copy)]


def standby_differences(core: Core, batches: Sequence[bytes], now: float) -> list[str]:
    """Checks a scheduler that started to stand by at half of the journal, and takes over now."""
    copy = take_over(Core(core.config, now=now, wall_time=now + core.life.wall_offset), batches, now)
    return list(_compare(core, copy)) if copy is not None else ["the journal could not be followed"]


def take_over(core: Core, batches: Sequence[bytes], now: float) -> Core | None:
    """A core that followed the second half of a journal, and leads from now on; None when that half cannot be followed,
    as in a snapshot."""
    compactor, half = Compactor(), len(batches) // 2
    compactor.read_all(batches[:half])
    understudy = Understudy(core, compactor, now)
    for batch in batches[half:]:
        compactor.read(batch)
        understudy.read(batch, now)
    return understudy.lead(now, now + core.life.wall_offset, core.life.last_lease) if understudy.whole else None


def store_differences(core: Core, path: Path, now: float) -> list[str]:
    """Checks a store that the scheduler has closed."""
    store = SqliteStore(path)
    try:
        return differences(core, store.open(now + core.life.wall_offset).batches, now)
    finally:
        store.close()


def _compare(core: Core, copy: Core) -> Iterator[str]:
    live, rebuilt = core.life, copy.life
    yield from _compare_tables("task", live.tasks, rebuilt.tasks, describe_task)
    yield from _compare_tables("actor", live.fleet.actors, rebuilt.fleet.actors, describe_actor)
    for name, one, other in (
        ("kinds", set(live.roster.kinds), set(rebuilt.roster.kinds)),
        ("strikes and quarantines", _standings(core), _standings(copy)),
        ("finished tasks in order", _finished(core), _finished(copy)),
        ("the order of tasks", list(live.tasks), list(rebuilt.tasks)),
        ("unfinished tasks", live.statistics.unfinished, rebuilt.statistics.unfinished),
        ("kept tasks by state", live.retention.by_state, rebuilt.retention.by_state),
        ("unfinished bytes", live.statistics.unfinished_bytes, rebuilt.statistics.unfinished_bytes),
        ("a number is given twice", True, live.next_number >= rebuilt.next_number),
    ):
        if one != other:
            yield f"{name}: {_short(one)}, rebuilt {_short(other)}"


def _compare_tables(what: str, live: dict[str, Any], rebuilt: dict[str, Any], describe: Any) -> Iterator[str]:
    for key in live.keys() | rebuilt.keys():
        one = describe(live[key]) if key in live else None
        other = describe(rebuilt[key]) if key in rebuilt else None
        if one != other:
            yield f'{what} "{key}" is {_short(one)} and would be rebuilt as {_short(other)}'


def describe_task(task: Task) -> tuple[Any, ...]:
    """The state that a restart must not change. A lost lease is kept only in memory, so that it can be reclaimed."""
    spec = (task.number, task.kind, task.priority, task.placement, task.submitter, task.max_attempts)
    if task.final:
        return *spec, task.state.name, task.attempts, task.result, task.failure, task.actor_id
    lease = (task.lease_id, task.actor_id) if task.actor is not None else None
    timeouts = (task.queue_timeout, task.run_timeout)
    counts = (task.attempts, task.failures, task.losses, task.missing)
    return *spec, "unfinished", *counts, lease, timeouts, task.dependencies, task.body


def describe_actor(actor: Actor) -> tuple[Any, ...]:
    return actor.node_id, actor.incarnation, actor.slots, actor.paused, sorted(actor.leases)


def _standings(core: Core) -> tuple[Any, ...]:
    strikes = core.sessions.quarantine.strikes
    # Strikes in quarantine are not recorded.
    struck = [node_id for node_id in strikes.nodes if node_id not in strikes.quarantines]
    return (
        sorted((node_id, len(strikes.times(node_id))) for node_id in struck),
        sorted((node_id, quarantine.reason) for node_id, quarantine in strikes.quarantines.items()),
    )


def _finished(core: Core) -> list[str]:
    return [task.task_id for task in core.life.retention.newest_first()]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
