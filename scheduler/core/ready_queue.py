"""The ready queue: which task an actor that can run certain classes takes next. Knows no actors and no clock.

Tasks of one class (kind and placement) can run on the same actors, so an unplaceable task blocks its class alone.
Between priorities the key `submit_time - boost * priority` decides: it never changes, so waiting raises a task at no
cost. Within a priority submitters take turns, and each submitter's tasks leave in the order they came. Picking costs
the same at a thousand and at a million queued tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from .task import ANYWHERE, QUEUED, Placement, Priority, Task

if TYPE_CHECKING:
    from .placement import Profile

# Highest first, so that equal keys go to the higher priority.
PRIORITIES = tuple(sorted((int(priority) for priority in Priority), reverse=True))
# How many turns a submitter may catch up after its tasks had no actor to run on.
CATCH_UP_TURNS = 16
FEW_DEAD_PLACES = 32


class Account:
    """One submitter within one priority; `turn` counts what it was served, and the lowest is served next."""

    __slots__ = ("priority", "ready", "submitter", "turn")

    def __init__(self, priority: int, submitter: str) -> None:
        self.priority = priority
        self.submitter = submitter
        self.turn = 0
        self.ready = 0


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


# (turn, number of the head, lane): a lower bound of the lane's true place, put right when it comes to the top.
Entry = tuple[int, int, Lane]


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

    def __init__(self, boost_seconds: float) -> None:
        self._boost = boost_seconds
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
            self._push_run(tasks[start:stop], task_class, priority, submitter)
            grown.append(task_class)
            start = stop
        return grown

    def _push_run(self, tasks: Sequence[Task], task_class: TaskClass, priority: int, submitter: str) -> None:
        account = self._accounts[priority].get(submitter)
        if account is None:
            account = self._accounts[priority][submitter] = Account(priority, submitter)
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
            if len(live) == len(live[0].lanes) == 1:
                # One kind of one submitter, as in most fleets: there is nothing to choose.
                task_class = live[0]
                (lane,) = task_class.lanes.values()
            else:
                lane, task_class = self._select(live)
            # Without rivals there is no need to choose again for each.
            alone = len(live) == 1 and lane.ready == task_class.ready
            taken += self._pop(lane, task_class, most - len(taken) if alone else 1)
        return taken

    def _select(self, live: list[TaskClass]) -> tuple[Lane, TaskClass]:
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
                assert lane.front is not None
                key = lane.front.submit_time - self._boost * priority
                if chosen is None or key < chosen_key:
                    chosen, chosen_key = (lane, best_class), key
        assert chosen is not None
        return chosen

    def discard(self, task: Task) -> None:
        """Forgets a task that left the state QUEUED by another way than `take`."""
        account = self._accounts[task.priority][task.submitter]
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
            for submitter in [account.submitter for account in accounts.values() if not account.ready]:
                del accounts[submitter]
        return idle

    def _pop(self, lane: Lane, task_class: TaskClass, most: int) -> list[Task]:
        account = lane.account
        tasks = lane.pop(most)
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
