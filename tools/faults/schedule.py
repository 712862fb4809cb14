"""The plan of a chaos run, decided by its seed: the fleet's shape and every fault. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .handlers import KINDS

# Name: (target, how often relative to the others).
FAULTS: dict[str, tuple[str, int]] = {
    "kill_scheduler": ("scheduler", 6),
    "terminate_scheduler": ("scheduler", 2),
    "stop_scheduler": ("scheduler", 2),
    "slow_disk_scheduler": ("scheduler", 2),
    "full_disk_scheduler": ("scheduler", 2),
    "broken_disk_scheduler": ("scheduler", 1),
    "short_writes_scheduler": ("scheduler", 1),
    "clock_scheduler": ("scheduler", 1),
    "kill_learner": ("learner", 3),
    "terminate_learner": ("learner", 1),
    "stop_learner": ("learner", 1),
    "full_disk_learner": ("learner", 1),
    "kill_actor": ("actor", 5),
    "terminate_actor": ("actor", 2),
    "stop_actor": ("actor", 3),
    "cut_actor": ("actor", 3),
    "refuse_actor": ("actor", 2),
    "hold_actor": ("actor", 2),
    "hold_up_actor": ("actor", 1),
    "hold_down_actor": ("actor", 1),
    "delay_actor": ("actor", 1),
    "trickle_actor": ("actor", 1),
    "clock_actor": ("actor", 1),
    "cut_client": ("client", 2),
    "hold_up_client": ("client", 1),
    "hold_down_client": ("client", 1),
    "stalled_reader": ("client", 1),
}
# Instead of the disk faults of a scheduler whose store is in PostgreSQL.
DATABASE_FAULTS: dict[str, tuple[str, int]] = {
    "kill_database": ("database", 3),
    "cut_database": ("database", 2),
    "hold_database": ("database", 2),
    "delay_database": ("database", 1),
}
_FIRST_FAULT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault and its start, in seconds from the start of the run."""

    at: float
    name: str
    target: str
    seconds: float
    """How long it lasts; for a kill, how long the process stays down."""
    amount: int = 0
    """Milliseconds of an fsync, bytes before the disk is full, seconds of a clock."""

    def __str__(self) -> str:
        return f"{self.at:8.2f} s  {self.name} of {self.target} for {self.seconds:.2f} s ({self.amount})"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the seed decides."""

    seed: int
    seconds: float
    scheduler: dict[str, Any]
    actors: tuple[dict[str, Any], ...]
    faults: tuple[PlannedFault, ...] = field(repr=False)


def faults_of(store: str) -> dict[str, tuple[str, int]]:
    """All faults for a fleet whose scheduler has this store."""
    if store != "postgresql":
        return FAULTS
    disks = ("slow_disk_scheduler", "full_disk_scheduler", "broken_disk_scheduler", "short_writes_scheduler")
    return {name: fault for name, fault in FAULTS.items() if name not in disks} | DATABASE_FAULTS


def make_plan(
    seed: int, seconds: float, *, names: Sequence[str] = (), gap_seconds: float = 2.5, store: str = "sqlite"
) -> Plan:
    """The same plan for the same arguments, always."""
    rng = random.Random(f"chaos-{seed}")  # noqa: S311 - must replay
    scheduler = {
        "retention.max_tasks": rng.choice((50, 1_000, 100_000)),
        "store.compact_records": rng.choice((100, 1_000, 200_000)),
        "leases.heartbeat_seconds": 0.5,
        "leases.duration_seconds": rng.choice((8.0, 10.0)),
        "leases.reconnect_seconds": rng.choice((2.0, 3.0)),
        # A task killed with its actor often enough is quarantined; here that must not be the usual end.
        "retries.quarantine_losses": rng.choice((3, 10)),
    }
    actors = tuple(_actor(index, rng) for index in range(rng.randint(2, 4)))
    return Plan(
        seed,
        seconds,
        scheduler,
        actors,
        tuple(_faults(rng, seconds, len(actors), names, gap_seconds, faults_of(store))),
    )


def _actor(index: int, rng: random.Random) -> dict[str, Any]:
    # The first actor can do everything, so that every task has an actor.
    unreadable = "" if index == 0 else rng.choice(("", *KINDS))
    kinds = [kind for kind in ("rollout", "evaluate", *KINDS) if kind != unreadable]
    return {"slots": rng.choice((1, 2, 4, 8)), "kinds": f"[{', '.join(kinds)}]"}


def _faults(
    rng: random.Random,
    seconds: float,
    actors: int,
    names: Sequence[str],
    gap_seconds: float,
    faults: dict[str, tuple[str, int]],
) -> list[PlannedFault]:
    chosen = list(names) or list(faults)
    unknown = [name for name in chosen if name not in faults]
    if unknown:
        raise ValueError(f"there is no fault {unknown[0]!r}; there are {', '.join(faults)}")
    weights = [faults[name][1] for name in chosen]
    found: list[PlannedFault] = []
    at = _FIRST_FAULT_SECONDS
    while (at := at + rng.expovariate(1 / gap_seconds)) < seconds:
        name = rng.choices(chosen, weights)[0]
        target = faults[name][0]
        if target == "actor":
            target = f"actor-{rng.randrange(actors)}"
        found.append(PlannedFault(round(at, 3), name, target, round(_lasts(name, rng), 3), _amount(name, rng)))
    return found


def _lasts(name: str, rng: random.Random) -> float:
    if name.startswith(("kill_", "terminate_")):
        # Mostly it is restarted immediately, as under a supervisor.
        return rng.choice((0.0, 0.0, rng.uniform(0.0, 3.0)))
    if name.startswith("stalled"):
        return rng.uniform(5.0, 20.0)
    return rng.uniform(0.3, 8.0)


def _amount(name: str, rng: random.Random) -> int:
    if name.startswith("slow_disk"):
        return rng.choice((20, 100, 500))
    if name.startswith("full_disk"):
        return rng.randrange(200_000)
    if name.startswith("clock"):
        return rng.choice((-3600, 3600, 7200))
    return 0
