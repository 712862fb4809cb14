"""Tasks that travel together, which of them are still wanted, and how they are split. Sends nothing."""

import asyncio
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from parlmesh.errors import FleetError

TASKS_PER_REQUEST = 10_000
"""The contract's limit for one request."""


@dataclass(slots=True, eq=False)
class Parcel:
    """Encoded tasks that travel together.

    A parcel that waits for its `receipt` is accepted or refused as a whole; one without is refused task by task.
    """

    task_ids: list[str] = field(default_factory=list)
    tasks: list[bytes] = field(default_factory=list)
    size: int = 0
    ordered: bool = False
    """Some task depends on another: earlier parcels must be accepted first."""
    chosen_ids: list[str] = field(default_factory=list)
    """Ids that the caller chose: the scheduler may have known, and even finished, them before."""
    receipt: asyncio.Future[None] | None = None

    def add(self, task_id: str, task: bytes) -> None:
        self.task_ids.append(task_id)
        self.tasks.append(task)
        self.size += len(task)

    @property
    def divisible(self) -> bool:
        return self.receipt is None and len(self.task_ids) > 1

    @property
    def unwanted(self) -> bool:
        """The caller stopped waiting for the receipt."""
        return self.receipt is not None and self.receipt.done()

    def wanted(self, pending: Container[str]) -> "Parcel | None":
        """The tasks that are still waited for: all or none of a parcel with a receipt, otherwise its pending tasks."""
        if self.receipt is not None:
            return None if self.unwanted else self
        kept = [position for position, task_id in enumerate(self.task_ids) if task_id in pending]
        return self.part(kept) if kept else None

    def accept(self) -> None:
        if self.receipt is not None and not self.receipt.done():
            self.receipt.set_result(None)

    def refuse(self, error: FleetError) -> None:
        if self.receipt is not None and not self.receipt.done():
            self.receipt.set_exception(error)

    def part(self, positions: Sequence[int]) -> "Parcel":
        """Some of the tasks of a divisible parcel."""
        task_ids = [self.task_ids[position] for position in positions]
        tasks = [self.tasks[position] for position in positions]
        chosen = set(self.chosen_ids) & set(task_ids)
        return Parcel(
            task_ids, tasks, sum(map(len, tasks)), self.ordered, [task_id for task_id in task_ids if task_id in chosen]
        )


def wanted(parcels: Iterable[Parcel], pending: Container[str]) -> list[Parcel]:
    """The wanted part of each parcel."""
    return [kept for parcel in parcels if (kept := parcel.wanted(pending)) is not None]


def halves(parcels: Sequence[Parcel]) -> tuple[list[Parcel], list[Parcel]] | None:
    """The same tasks as two requests, in order; None when they cannot be split, so that a refusal means them."""
    if len(parcels) > 1:
        middle = len(parcels) // 2
        return list(parcels[:middle]), list(parcels[middle:])
    (parcel,) = parcels
    if not parcel.divisible:
        return None
    count = len(parcel.task_ids)
    return [parcel.part(range(count // 2))], [parcel.part(range(count // 2, count))]
