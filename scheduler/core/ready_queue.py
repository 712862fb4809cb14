"""The ready queue: which task an actor that can run certain classes takes next. Knows no actors and no clock.

Tasks of one class (kind and placement) can run on the same actors, so an unplaceable task blocks its class alone.
Between priorities the key `submit_time - boost * priority` decides: it never changes, so waiting raises a task at no
cost. Within a priority submitters take turns, and each submitter's tasks leave in the order they came; a namespace has
one turn, however many submitters it names. Picking costs the same at a thousand and at a million queued tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from .namespace_shares import Share, Shares
from .submitter_lanes import Account, Lane, account_name
from .task import ANYWHERE, Placement, Priority, Task

if TYPE_CHECKING:
    from .placement import Profile

# Highest first, so that equal keys go to the higher priority.
PRIORITIES = tuple(sorted((int(priority) for priority in Priority), reverse=True))
# How many turns a submitter may catch up after its tasks had no actor to run on.
CATCH_UP_TURNS = 16
# Of so many it is cheaper to look at all of them for every task.
FEW_CLASSES = 16


# (turn, number of the head, lane): a lower bound of the lane's true place, put right when it comes to the top.
Entry = tuple[int, int, Lane]
# (number of the head, lane, class).
Head = tuple[int, Lane, "TaskClass"]


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
        # Kept by the fleet: whose actors can run this class.
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
        """Removes entries that were superseded, or whose lane is gone: a new lane may have the same numbers."""
        for priority, heap in enumerate(self.heaps):
            self.heaps[priority] = [entry for entry in heap if entry is entry[2].entry]
            heapify(self.heaps[priority])

    def dissolve(self) -> None:
        """Breaks the circles of a class that is dropped: nobody looks for garbage among what is old."""
        for lane in self.lanes.values():
            lane.entry = lane.front = None
        self.lanes.clear()
        self.heaps = []
        self.profiles = []


class ReadyQueue:
    """Every ready task, by class, priority and submitter."""

    def __init__(self, boost_seconds: float, shares: Shares | None = None) -> None:
        self._boost = boost_seconds
        self._shares = shares or Shares()
        levels = max(PRIORITIES) + 1
        self._accounts: list[dict[str, Account]] = [{} for _ in range(levels)]
        self._floor = [0] * levels
        self.classes: dict[tuple[str, Placement], TaskClass] = {}
        # The same, for those that may run anywhere: most are, and a short key is found faster.
        self._unplaced: dict[str, TaskClass] = {}
        self.ready = 0
        self.ready_by_priority = [0] * levels

    def push(self, tasks: Sequence[Task]) -> list[TaskClass]:
        """Adds tasks whose state is QUEUED; the classes that grew. Neighbours of one kind are added together."""
        grown: list[TaskClass] = []
        start, count = 0, len(tasks)
        while start < count:
            first = tasks[start]
            task_class, priority, submitter = first.task_class, first.priority, first.submitter
            stop = start + 1
            while stop < count:
                task = tasks[stop]
                if task.task_class is not task_class or task.priority != priority or task.submitter != submitter:
                    break
                stop += 1
            self._push_run(tasks[start:stop], task_class, priority)
            grown.append(task_class)
            start = stop
        return grown

    def _push_run(self, tasks: Sequence[Task], task_class: TaskClass, priority: int) -> None:
        name = account_name(tasks[0])
        account = self._accounts[priority].get(name)
        if account is None:
            account = self._accounts[priority][name] = Account(priority, name, self._shares.of(tasks[0]))
        if not account.ready:
            account.turn = max(account.turn, self._floor[priority] + 1)
        lane = task_class.lanes.get(account)
        if lane is None:
            lane = task_class.lanes[account] = Lane(account)
        lowest = lane.add(tasks)
        entry = lane.entry
        if entry is None or lowest < entry[1]:
            lane.entry = entry = (account.turn, lowest, lane)
            heappush(task_class.heaps[priority], entry)
        count = len(tasks)
        account.ready += count
        lane.ready += count
        task_class.ready += count
        self.ready += count
        self.ready_by_priority[priority] += count

    def take(self, classes: Iterable[TaskClass], most: int = 1) -> list[Task]:
        """Removes and returns the tasks that come next among these classes."""
        taken: list[Task] = []
        while len(taken) < most:
            live = [task_class for task_class in classes if task_class.ready]
            if not live:
                break
            if len(live) > FEW_CLASSES and most - len(taken) > 1:
                return taken + self._take_of_many(live, most - len(taken))
            if len(live) == len(live[0].lanes) == 1 and (lane := next(iter(live[0].lanes.values()))).account.free:
                # One kind of one submitter, as in most fleets: there is nothing to choose.
                task_class = live[0]
            elif (found := self._select(live)) is not None:
                lane, task_class = found
            else:
                break
            # Without rivals there is no need to choose again for each.
            alone = len(live) == 1 and lane.ready == task_class.ready
            taken += self._pop(lane, task_class, most - len(taken) if alone else 1)
        return taken

    def _select(self, live: list[TaskClass]) -> tuple[Lane, TaskClass] | None:
        """None when all that is ready is of namespaces that hold their share."""
        chosen: tuple[Lane, TaskClass] | None = None
        chosen_key = 0.0
        for priority in PRIORITIES:
            if not self.ready_by_priority[priority]:
                continue
            best: Entry | None = None
            for task_class in live:
                entry = task_class.best(priority)
                if entry is not None and (best is None or entry < best):
                    best, best_class = entry, task_class
            if best is not None:
                lane = best[2]
                key = self._key(lane)
                if chosen is None or key < chosen_key:
                    chosen, chosen_key = (lane, best_class), key
        return chosen

    def _take_of_many(self, live: list[TaskClass], most: int) -> list[Task]:
        """The same choice, prepared once for many tasks: each class is looked at once and not for every task."""
        by_account: dict[Account, list[Head]] = {}
        for task_class in live:
            for account, lane in task_class.lanes.items():
                if (head := lane.head()) is None:
                    continue
                if lane.account.free:
                    by_account.setdefault(account, []).append((head.number, lane, task_class))
                else:
                    lane.account.block(lane, task_class)
        turns: dict[int, list[tuple[int, int, Account]]] = {}
        for account, heads in by_account.items():
            heapify(heads)
            turns.setdefault(account.priority, []).append((account.turn, heads[0][0], account))
        for waiting in turns.values():
            heapify(waiting)
        taken: list[Task] = []
        while turns and len(taken) < most:
            priority = min(
                sorted(turns, reverse=True), key=lambda priority: self._key(by_account[turns[priority][0][2]][0][1])
            )
            waiting = turns[priority]
            account = waiting[0][2]
            heads = by_account[account]
            _, lane, task_class = heads[0]
            taken += self._pop(lane, task_class, 1)
            if (head := lane.head()) is not None:
                heapreplace(heads, (head.number, lane, task_class))
            else:
                heappop(heads)
            if heads and lane.account.free:
                heapreplace(waiting, (account.turn, heads[0][0], account))
                continue
            for _, other, other_class in heads:
                other.account.block(other, other_class)
            heappop(waiting)
            if not waiting:
                del turns[priority]
        return taken

    def _key(self, lane: Lane) -> float:
        assert lane.front is not None
        return lane.front.submit_time - self._boost * lane.account.priority

    def hold(self, task: Task) -> None:
        """It has a lease that `take` did not lead to."""
        if (share := self._shares.of(task)) is not None:
            share.held += 1

    def release(self, task: Task) -> Sequence[TaskClass]:
        """Its lease is over; the classes that waited for its namespace."""
        share = self._shares.of(task)
        if share is None:
            return ()
        share.held -= 1
        return self._unblock(share)

    def resize(self, slots: int) -> list[TaskClass]:
        """The fleet has so many slots now; the classes that waited for a namespace that may hold more."""
        return [task_class for share in self._shares.resize(slots) for task_class in self._unblock(share)]

    def share(self, task: Task) -> Share | None:
        """What its namespace holds and may; None when it is of none."""
        return self._shares.of(task)

    def _unblock(self, share: Share) -> Sequence[TaskClass]:
        if not share.blocked or share.held >= share.most:
            return ()
        found: list[TaskClass] = []
        blocked, share.blocked = share.blocked, {}
        for lane, task_class in blocked.items():
            account = lane.account
            if task_class.lanes.get(account) is not lane or (head := lane.head()) is None:
                continue
            if lane.entry is None:
                lane.entry = (account.turn, head.number, lane)
                heappush(task_class.heaps[account.priority], lane.entry)
            found.append(task_class)
        return found

    def discard(self, task: Task) -> None:
        """Forgets a task that left the state QUEUED by another way than `take`."""
        account = self._accounts[task.priority][account_name(task)]
        self._count_out(account, task.task_class, 1)
        task.task_class.lanes[account].leave(task)

    def task_class(self, kind: str, placement: Placement) -> TaskClass | None:
        if placement is ANYWHERE:
            return self._unplaced.get(kind)
        return self.classes.get((kind, placement))

    def add_class(self, kind: str, placement: Placement) -> TaskClass:
        task_class = self.classes[kind, placement] = TaskClass(kind, placement)
        if placement == ANYWHERE:
            self._unplaced[kind] = task_class
        return task_class

    def oldest(self) -> Task | None:
        """The ready task that was submitted first; costs one step per lane."""
        heads = [
            lane.front
            for task_class in self.classes.values()
            if task_class.ready
            for lane in task_class.lanes.values()
            if lane.head() is not None and lane.front is not None
        ]
        return min(heads, key=lambda task: task.number, default=None)

    def trim(self) -> list[TaskClass]:
        """Drops accounts and lanes that hold nothing; returns the classes it dropped."""
        idle = [task_class for task_class in self.classes.values() if not task_class.unfinished]
        for task_class in idle:
            del self.classes[task_class.kind, task_class.placement]
            if task_class.placement == ANYWHERE:
                del self._unplaced[task_class.kind]
        for task_class in self.classes.values():
            for account in [account for account, lane in task_class.lanes.items() if lane.head() is None]:
                task_class.lanes.pop(account).entry = None
            task_class.sweep()
        for accounts in self._accounts:
            for name in [account.name for account in accounts.values() if not account.ready]:
                del accounts[name]
        return idle

    def _pop(self, lane: Lane, task_class: TaskClass, most: int) -> list[Task]:
        account = lane.account
        share = account.share
        if share is not None:
            most = min(most, share.most - share.held)
        tasks = lane.pop(most)
        if share is not None:
            share.held += len(tasks)
        self._count_out(account, task_class, len(tasks))
        last_turn = account.turn + len(tasks) - 1
        floor = self._floor[account.priority] = max(self._floor[account.priority], last_turn)
        account.turn = max(last_turn + 1, floor - CATCH_UP_TURNS)
        return tasks

    def _count_out(self, account: Account, task_class: TaskClass, tasks: int) -> None:
        account.ready -= tasks
        task_class.ready -= tasks
        self.ready -= tasks
        self.ready_by_priority[account.priority] -= tasks
