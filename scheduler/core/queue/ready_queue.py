"""The ready queue: which task comes next for an actor that can run certain classes. Knows no actors and no clock.

Tasks of one class (kind and placement) can run on the same actors, so an unplaceable task blocks only its class.
Submitters take turns, and each submitter's tasks leave in the order they came; a namespace has one turn, however many
submitters it names. Picking costs the same with a thousand queued tasks as with a million.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from ..task import ANYWHERE, QUEUED, Placement, Task
from .namespace_shares import Share, Shares
from .task_class import PRIORITIES, LaneHeap, TaskClass, choose

if TYPE_CHECKING:
    from .task_class import Entry

# How many turns a submitter may catch up after its tasks had no actor to run on.
CATCH_UP_TURNS = 16
# Up to this many classes, it is cheaper to compare all of them for every task.
FEW_CLASSES = 16
FEW_DEAD_PLACES = 32


class Account:
    """One submitter, or a whole namespace, within one priority. `turn` counts the tasks it was served; the lowest is
    served next."""

    __slots__ = ("name", "priority", "ready", "share", "turn")

    def __init__(self, priority: int, name: str, share: Share | None = None) -> None:
        self.priority = priority
        self.name = name
        # Its share of the fleet's slots; None = no limit.
        self.share = share
        self.turn = 0
        self.ready = 0

    @property
    def free(self) -> bool:
        """Whether its namespace, if any, may hold more slots."""
        share = self.share
        return share is None or share.held < share.most

    def block(self, lane: Lane, task_class: TaskClass) -> None:
        """Notes that one of its lanes waits for the namespace's share."""
        assert self.share is not None
        self.share.blocked[lane] = task_class


class Lane:
    """The ready tasks of one account in one class, by number.

    Tasks that arrive in order stay in a deque; those that come back (retries, released dependencies) go to a heap.
    Places of tasks that are no longer queued are skipped, and swept once they are the majority; a task that comes back
    before that takes its old place.
    """

    __slots__ = ("account", "dead", "entry", "front", "late", "line", "ready")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.ready = 0
        self.line: deque[Task] = deque()
        self.late: list[tuple[int, Task]] = []
        # Tasks that have left but still have a place.
        self.dead: set[Task] = set()
        self.entry: Entry | None = None
        self.front: Task | None = None

    def add(self, tasks: Sequence[Task]) -> int:
        """Adds tasks and returns the lowest of their numbers."""
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
        """The first task, also kept in `front`."""
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
        """Removes and returns the first tasks, up to `most`."""
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
        """Notes that a task has left; its place is kept for now."""
        self.ready -= 1
        self.dead.add(task)
        if len(self.dead) > FEW_DEAD_PLACES and len(self.dead) * 2 > len(self.line) + len(self.late):
            self.line = deque(task for task in self.line if task.state is QUEUED)
            self.late = [item for item in self.late if item[1].state is QUEUED]
            heapify(self.late)
            self.dead.clear()


class ReadyQueue:
    """Every ready task, by class, priority and submitter."""

    def __init__(self, boost_seconds: float, shares: Shares | None = None) -> None:
        self._boost = boost_seconds
        self.shares = shares or Shares()
        """The slots that each namespace holds and may hold."""
        levels = max(PRIORITIES) + 1
        self._accounts: list[dict[str, Account]] = [{} for _ in range(levels)]
        self._floor = [0] * levels
        self.classes: dict[tuple[str, Placement], TaskClass] = {}
        # Kept apart for classes that may run anywhere: most may, and a short key is found faster.
        self._unplaced: dict[str, TaskClass] = {}
        self.ready = 0
        self.ready_by_priority = [0] * levels

    def push(self, tasks: Sequence[Task]) -> list[TaskClass]:
        """Adds tasks whose state is QUEUED and returns the classes that grew. Similar neighbours are added together."""
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
        name = _account_name(tasks[0])
        account = self._accounts[priority].get(name)
        if account is None:
            account = self._accounts[priority][name] = Account(priority, name, self.shares.of(tasks[0]))
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
                rivals = LaneHeap(live, self._boost)
                while len(taken) < most and (rival := rivals.first()) is not None:
                    taken += self._pop(*rival, 1)
                    rivals.advance()
                return taken
            if len(live) == len(live[0].lanes) == 1 and (lane := next(iter(live[0].lanes.values()))).account.free:
                # One kind of one submitter, as in most fleets: there is nothing to choose.
                task_class = live[0]
            elif (found := choose(live, self.ready_by_priority, self._boost)) is not None:
                lane, task_class = found
            else:
                break
            # Without rivals there is no need to choose again for each task.
            alone = len(live) == 1 and lane.ready == task_class.ready
            taken += self._pop(lane, task_class, most - len(taken) if alone else 1)
        return taken

    def hold(self, task: Task) -> None:
        """Counts a lease that did not come from `take`."""
        if (share := self.shares.of(task)) is not None:
            share.held += 1

    def release(self, task: Task) -> Sequence[TaskClass]:
        """Ends a task's lease and returns the classes that waited for its namespace."""
        share = self.shares.of(task)
        if share is None:
            return ()
        share.held -= 1
        return self._unblock(share)

    def resize(self, slots: int) -> list[TaskClass]:
        """Takes the fleet's present slots; returns the classes that waited for a namespace that may hold more now."""
        return [task_class for share in self.shares.resize(slots) for task_class in self._unblock(share)]

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
        """Forgets a task that left the state QUEUED other than by `take`."""
        account = self._accounts[task.priority][_account_name(task)]
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
        """Drops classes, lanes and accounts that hold nothing; returns the dropped classes."""
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


def _account_name(task: Task) -> str:
    """The task's namespace, so that a team gets no more turns by using more names; without one, its submitter."""
    owner = task.owner
    return owner if owner and owner[-1] == "/" else task.submitter
