"""Tasks that the same actors can run, and the choice of the next lane where several have ready tasks. No I/O.

Between priorities the key `submit_time - boost * priority` decides: it never changes, so waiting raises a task at no
cost. Within a priority the lowest turn is next.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING

from ..task import Placement, Priority

if TYPE_CHECKING:
    from ..actors.placement import Profile
    from .ready_queue import Account, Lane

    # (turn, number of the head, lane): a lower bound of the lane's true place, corrected when it comes to the top.
    Entry = tuple[int, int, Lane]
    # (number of the head, lane, class).
    Head = tuple[int, Lane, "TaskClass"]
    Choice = tuple[Lane, "TaskClass"]

# Highest first, so that equal keys go to the higher priority.
PRIORITIES = tuple(sorted((int(priority) for priority in Priority), reverse=True))


class TaskClass:
    """Tasks that the same actors can run."""

    __slots__ = ("heaps", "kind", "lanes", "placement", "profiles", "ready", "unfinished")

    def __init__(self, kind: str, placement: Placement) -> None:
        self.kind = kind
        self.placement = placement
        self.ready = 0
        self.unfinished = 0
        self.lanes: dict[Account, Lane] = {}
        self.heaps: list[list[Entry]] = [[] for _ in range(max(PRIORITIES) + 1)]
        # Kept by the fleet: the profiles whose actors can run this class.
        self.profiles: list[Profile] = []

    def best(self, priority: int) -> Entry | None:
        heap = self.heaps[priority]
        while heap:
            entry = heap[0]
            lane = entry[2]
            if entry is not lane.entry:
                heappop(heap)
                continue
            head = lane.head()
            if head is None:
                heappop(heap)
                lane.entry = None
                continue
            if not lane.account.free:
                heappop(heap)
                lane.entry = None
                lane.account.block(lane, self)
                continue
            if entry[0] == lane.account.turn and entry[1] == head.number:
                return entry
            lane.entry = fresh = (lane.account.turn, head.number, lane)
            heapreplace(heap, fresh)
            if heap[0] is fresh:
                return fresh
        return None

    def sweep(self) -> None:
        """Removes entries that were superseded, or whose lane was removed: a new lane may have the same numbers."""
        for priority, heap in enumerate(self.heaps):
            self.heaps[priority] = [entry for entry in heap if entry is entry[2].entry]
            heapify(self.heaps[priority])

    def dissolve(self) -> None:
        """Breaks the reference cycles of a dropped class, because old objects are never garbage-collected."""
        for lane in self.lanes.values():
            lane.entry = lane.front = None
        self.lanes.clear()
        self.heaps = []
        self.profiles = []


def choose(live: list[TaskClass], ready_by_priority: Sequence[int], boost: float) -> Choice | None:
    """The next lane; None when every ready task belongs to a namespace that holds its whole share."""
    chosen: Choice | None = None
    chosen_key = 0.0
    for priority in PRIORITIES:
        if not ready_by_priority[priority]:
            continue
        best: Entry | None = None
        for task_class in live:
            entry = task_class.best(priority)
            if entry is not None and (best is None or entry < best):
                best, best_class = entry, task_class
        if best is not None:
            lane = best[2]
            key = _key(lane, boost)
            if chosen is None or key < chosen_key:
                chosen, chosen_key = (lane, best_class), key
    return chosen


class LaneHeap:
    """The same choice, prepared for many tasks: each class is looked at once, not once per task."""

    def __init__(self, live: list[TaskClass], boost: float) -> None:
        self._boost = boost
        self._by_account: dict[Account, list[Head]] = {}
        for task_class in live:
            for account, lane in task_class.lanes.items():
                if (head := lane.head()) is None:
                    continue
                if lane.account.free:
                    self._by_account.setdefault(account, []).append((head.number, lane, task_class))
                else:
                    lane.account.block(lane, task_class)
        self._turns: dict[int, list[tuple[int, int, Account]]] = {}
        for account, heads in self._by_account.items():
            heapify(heads)
            self._turns.setdefault(account.priority, []).append((account.turn, heads[0][0], account))
        for waiting in self._turns.values():
            heapify(waiting)
        # Priority of the lane that `first` returned.
        self._priority = 0

    def first(self) -> Choice | None:
        """The next lane; call `advance` after taking one task from it."""
        if not self._turns:
            return None
        firsts = {priority: self._by_account[waiting[0][2]][0] for priority, waiting in self._turns.items()}
        self._priority = min(sorted(firsts, reverse=True), key=lambda priority: _key(firsts[priority][1], self._boost))
        _, lane, task_class = firsts[self._priority]
        return lane, task_class

    def advance(self) -> None:
        """Puts the lane's next task in its place among the others."""
        waiting = self._turns[self._priority]
        account = waiting[0][2]
        heads = self._by_account[account]
        _, lane, task_class = heads[0]
        if (head := lane.head()) is not None:
            heapreplace(heads, (head.number, lane, task_class))
        else:
            heappop(heads)
        if heads and lane.account.free:
            heapreplace(waiting, (account.turn, heads[0][0], account))
            return
        for _, other, other_class in heads:
            other.account.block(other, other_class)
        heappop(waiting)
        if not waiting:
            del self._turns[self._priority]


def _key(lane: Lane, boost: float) -> float:
    assert lane.front is not None
    return lane.front.submit_time - boost * lane.account.priority
