"""Trajectories between arrival and update: admitted, bounded, oldest first, every one accounted for."""

import threading
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from parlmesh.errors import FailedPrecondition, FleetError, ResourceExhausted
from parlmesh.types import Trajectory

from .asked_rollouts import AskedRollouts
from .trajectory_schema import TrajectorySchema, check_episodes

# A retry comes within the few uploads an actor has in flight; older ones were counted long ago.
_WINDOW = 4_096
_MAX_ACTORS = 100_000


class ExperienceQueue:
    """received = trained + training + queued + the sum of dropped, whenever `books` is held."""

    books = threading.RLock()
    """One lock for all queues: a thread that sums over them sees a consistent state."""

    def __init__(
        self,
        run_id: str,
        schema: TrajectorySchema,
        *,
        max_queued: int,
        max_policy_lag: int,
        first_version: int,
        run_uid: str = "",
    ) -> None:
        self._run_id = run_id
        self._run_uid = run_uid
        self._schema = schema
        self._max_queued = max_queued
        self._max_lag = max_policy_lag
        self._first_version = first_version
        self._origins = Origins()
        self._queue: deque[Trajectory] = deque()
        # The rollouts that a fleet was asked for; None in a serial run.
        self.asked: AskedRollouts | None = None
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
        """Queues a trajectory; counts the reason and raises when it is refused."""
        try:
            self._check(trajectory, newest_version)
        except FleetError as error:
            self.refuse(error)
            raise
        self._origins.add(trajectory)
        with self.books:
            self.received += 1
            self._queue.append(trajectory)
        if self.asked is not None:
            self.asked.deliver(trajectory)

    def refuse(self, error: FleetError) -> None:
        """Counts a refused trajectory."""
        with self.books:
            self.received += 1
            self.dropped[error.reason] += 1

    def take(self, count: int, version: int) -> list[Trajectory] | None:
        """The `count` oldest trajectories within the lag limit for `version`, or None while there are fewer.

        Trajectories that grew too old while they waited are dropped here.
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
        """Accounts for a batch that `take` returned."""
        with self.books:
            self.training -= count
            if applied:
                self.trained += count
            else:
                self.dropped["NOT_FINITE_UPDATE"] += count

    def _check(self, trajectory: Trajectory, newest_version: int) -> None:
        """Identity, version and content, in this order."""
        if not self.room:
            message = f"{self._max_queued} trajectories are queued; that is the limit"
            raise ResourceExhausted(message, reason="QUEUE_FULL", retry_after_seconds=0.1)
        if trajectory.run_id != self._run_id:
            message = f"run {trajectory.run_id!r} is not trained here; this learner trains {self._run_id!r}"
            raise FailedPrecondition(message, reason="UNKNOWN_RUN")
        if self.asked is not None:
            self.asked.note_arrival(trajectory.task_id)
        # Empty from an actor that does not know uids; then the version decides.
        if trajectory.run_uid and trajectory.run_uid != self._run_uid:
            message = f"run {self._run_id!r} was started again since the policy of this trajectory was published"
            raise FailedPrecondition(message, reason="OTHER_RUN")
        self._check_version(trajectory.policy_version, newest_version)
        self._origins.check(trajectory)
        if self.asked is not None:
            self.asked.check(trajectory)
        self._schema.check(trajectory.fragment.columns)
        check_episodes(trajectory.fragment)

    def _check_version(self, version: int, newest: int) -> None:
        if not self._first_version <= version <= newest:
            message = f"policy version {version} is unknown; this learner published {self._first_version}..{newest}"
            raise FailedPrecondition(message, reason="UNKNOWN_POLICY_VERSION", newest=newest)
        if newest - version > self._max_lag:
            message = (
                f"trajectory of policy version {version} is {newest - version} versions old; "
                f"the limit is {self._max_lag} (training.max_policy_lag)"
            )
            raise FailedPrecondition(message, reason="POLICY_LAG", newest=newest)


@dataclass(slots=True)
class _Origin:
    """The sequence numbers seen from one actor's newest incarnation."""

    incarnation: int
    highest: int = 0
    seen: set[int] = field(default_factory=set)


class Origins:
    """Numbers of accepted trajectories by node and actor: each counts once, and no node speaks for another's actor."""

    def __init__(self) -> None:
        self._origins: OrderedDict[tuple[str, str], _Origin] = OrderedDict()

    def check(self, trajectory: Trajectory) -> None:
        """Raises when the trajectory was accepted before, or its actor has been replaced."""
        origin = self._origins.get((trajectory.node_id, trajectory.actor_id))
        if origin is None or trajectory.incarnation > origin.incarnation:
            return
        who = f"actor {trajectory.actor_id} incarnation {trajectory.incarnation}"
        if trajectory.incarnation < origin.incarnation:
            message = f"{who} was replaced by incarnation {origin.incarnation}"
            # An actor whose clock went back then takes the incarnation after the newest.
            raise FailedPrecondition(message, reason="OLD_INCARNATION", newest_incarnation=origin.incarnation)
        if trajectory.sequence in origin.seen or trajectory.sequence <= origin.highest - _WINDOW:
            raise FailedPrecondition(
                f"trajectory {trajectory.sequence} of {who} was received before", reason="DUPLICATE_TRAJECTORY"
            )

    def add(self, trajectory: Trajectory) -> None:
        """Notes an accepted trajectory."""
        key = trajectory.node_id, trajectory.actor_id
        origin = self._origins.get(key)
        if origin is None or trajectory.incarnation > origin.incarnation:
            origin = self._origins[key] = _Origin(trajectory.incarnation)
        origin.seen.add(trajectory.sequence)
        origin.highest = max(origin.highest, trajectory.sequence)
        if len(origin.seen) > 2 * _WINDOW:
            origin.seen = {sequence for sequence in origin.seen if sequence > origin.highest - _WINDOW}
        self._origins.move_to_end(key)
        if len(self._origins) > _MAX_ACTORS:
            self._origins.popitem(last=False)
