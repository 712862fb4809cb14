"""Whose ready tasks they are: submitters, whose turn it is, and their tasks in order. Part of the core: no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from .task import QUEUED, Task

if TYPE_CHECKING:
    from .namespace_shares import Share
    from .ready_queue import Entry, TaskClass

FEW_DEAD_PLACES = 32


class Account:
    """One submitter, or all of a namespace, within one priority; `turn` counts what it was served, and the lowest is
    served next."""

    __slots__ = ("name", "priority", "ready", "share", "turn")

    def __init__(self, priority: int, name: str, share: Share | None = None) -> None:
        self.priority = priority
        self.name = name
        # What it may hold of the fleet's slots; None = whatever there is.
        self.share = share
        self.turn = 0
        self.ready = 0

    @property
    def free(self) -> bool:
        """Whether its namespace, if it is of one, may hold more."""
        share = self.share
        return share is None or share.held < share.most

    def block(self, lane: Lane, task_class: TaskClass) -> None:
        """A lane of it waits for its namespace."""
        assert self.share is not None
        self.share.blocked[lane] = task_class


class Lane:
    """The ready tasks of one account in one class, by number.

    In-order arrivals stay in a deque; those that come back (retries, released dependencies) go to a heap.
    Places whose task is no longer queued are skipped, and swept when they are the majority; a task that comes back
    before that takes its old place.
    """

    __slots__ = ("account", "dead", "entry", "front", "late", "line", "ready")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.ready = 0
        self.line: deque[Task] = deque()
        self.late: list[tuple[int, Task]] = []
        # Tasks that have left and whose places are still there.
        self.dead: set[Task] = set()
        self.entry: Entry | None = None
        self.front: Task | None = None

    def add(self, tasks: Sequence[Task]) -> int:
        """Returns the lowest number of them."""
        line = self.line
        newest = line[-1].number if line else -1
        lowest = tasks[0].number
        for task in tasks:
            number = task.number
            if self.dead and task in self.dead:
                self.dead.remove(task)
                lowest = min(lowest, number)
            elif number > newest:
                line.append(task)
                newest = number
            else:
                heappush(self.late, (number, task))
                lowest = min(lowest, number)
        return lowest

    def head(self) -> Task | None:
        """The first task, kept in `front`."""
        line, late = self.line, self.late
        while line and line[0].state is not QUEUED:
            self.dead.discard(line.popleft())
        while late and late[0][1].state is not QUEUED:
            self.dead.discard(heappop(late)[1])
        if late and (not line or late[0][0] < line[0].number):
            self.front = late[0][1]
        else:
            self.front = line[0] if line else None
        return self.front

    def pop(self, most: int) -> list[Task]:
        """Removes the first tasks."""
        taken: list[Task] = []
        line = self.line
        if not self.late:
            while line and len(taken) < most:
                task = line.popleft()
                if task.state is QUEUED:
                    taken.append(task)
                else:
                    self.dead.discard(task)
        else:
            while len(taken) < most and (head := self.head()) is not None:
                if line and line[0] is head:
                    line.popleft()
                else:
                    heappop(self.late)
                taken.append(head)
        self.ready -= len(taken)
        return taken

    def leave(self, task: Task) -> None:
        """Its place stays for now."""
        self.ready -= 1
        self.dead.add(task)
        if len(self.dead) > FEW_DEAD_PLACES and len(self.dead) * 2 > len(self.line) + len(self.late):
            self.line = deque(task for task in self.line if task.state is QUEUED)
            self.late = [item for item in self.late if item[1].state is QUEUED]
            heapify(self.late)
            self.dead.clear()


def account_name(task: Task) -> str:
    """Whoever is confined to a namespace is served in its name: no team has more turns for more names."""
    owner = task.owner
    return owner if owner and owner[-1] == "/" else task.submitter
