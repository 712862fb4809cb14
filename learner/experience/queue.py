"""Trajectories between arrival and update: bounded, oldest first, every one accounted for."""

import threading
from collections import Counter, deque

from parlmesh.errors import FleetError, ResourceExhausted
from parlmesh.types import Trajectory

from .trajectory_admission import Admission


class ExperienceQueue:
    """received = trained + training + queued + the sum of dropped, whenever `books` is held."""

    books = threading.RLock()
    """One lock for all queues: a thread that sums over them sees them at one moment."""

    def __init__(self, admission: Admission, *, max_queued: int, max_policy_lag: int) -> None:
        self.admission = admission
        self._max_queued = max_queued
        self._max_lag = max_policy_lag
        self._queue: deque[Trajectory] = deque()
        self.received = 0
        self.trained = 0
        self.training = 0
        self.dropped: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def room(self) -> int:
        """How many more trajectories fit."""
        return self._max_queued - len(self._queue)

    def put(self, trajectory: Trajectory, newest_version: int) -> None:
        """Raises, having counted why, when the trajectory is refused."""
        try:
            if not self.room:
                message = f"{self._max_queued} trajectories are queued; that is the limit"
                raise ResourceExhausted(message, reason="QUEUE_FULL", retry_after_seconds=0.1)
            self.admission.admit(trajectory, newest_version)
        except FleetError as error:
            self.refuse(error)
            raise
        with self.books:
            self.received += 1
            self._queue.append(trajectory)

    def refuse(self, error: FleetError) -> None:
        """Counts a trajectory that is not taken."""
        with self.books:
            self.received += 1
            self.dropped[error.reason] += 1

    def take(self, count: int, version: int) -> list[Trajectory] | None:
        """The `count` oldest that are within the lag limit for a policy of `version`, or None while there are fewer.

        Those past the limit are dropped here too: they grew too old while they waited.
        """
        with self.books:
            fresh = [each for each in self._queue if version - each.policy_version <= self._max_lag]
            if len(fresh) < len(self._queue):
                self.dropped["POLICY_LAG"] += len(self._queue) - len(fresh)
                self._queue = deque(fresh)
            if len(self._queue) < count:
                return None
            self.training += count
            return [self._queue.popleft() for _ in range(count)]

    def finish(self, count: int, *, applied: bool) -> None:
        """Accounts for a batch that `take` gave out."""
        with self.books:
            self.training -= count
            if applied:
                self.trained += count
            else:
                self.dropped["NOT_FINITE_UPDATE"] += count
