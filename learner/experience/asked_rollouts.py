"""The rollouts that were requested from a fleet, and the result of each."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from parlmesh.errors import FailedPrecondition, PermissionDenied
from parlmesh.types import Trajectory

from .rollout_deadline import RolloutDeadline
from .sender_strikes import UNASKED

# A trajectory may arrive long after its rollout was cancelled.
_REMEMBERED_TASKS = 10_000


@dataclass(slots=True)
class _Rollout:
    asked_at: float
    seconds: float
    """How long it may take."""
    heard_of: bool = False
    delivered: bool = False
    ended: bool = False


class RolloutEnd(NamedTuple):
    """The facts about the end of a rollout besides its outcome."""

    heard_of: bool
    """Whether any trajectory of it arrived, good or bad."""
    slow: bool
    """Whether it ran past this run's own deadline, which is shorter than the configured one."""


class AskedRollouts:
    """The rollouts of one run, by the ids of their tasks."""

    def __init__(
        self,
        most_seconds: float,
        *,
        node_of: Callable[[str], str],
        is_leftover: Callable[[str], bool],
        forgive: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """`node_of` returns an actor's node, empty if unknown; `is_leftover` tells whether a task is from before the
        learner's restart; `forgive` is called with every actor that delivers."""
        self.outstanding: set[str] = set()
        """Rollouts that have neither delivered nor ended."""
        self.deadline = RolloutDeadline(most_seconds)
        self._node_of = node_of
        self._is_leftover = is_leftover
        self._forgive = forgive
        self._clock = clock
        self._rollouts: OrderedDict[str, _Rollout] = OrderedDict()

    def ask(self, task_ids: Iterable[str]) -> None:
        """Notes rollouts that have just been submitted."""
        now, seconds = self._clock(), self.deadline.seconds
        for task_id in task_ids:
            self.outstanding.add(task_id)
            self._rollouts[task_id] = _Rollout(now, seconds)
        while len(self._rollouts) > max(_REMEMBERED_TASKS, 2 * len(self.outstanding)):
            oldest = next(iter(self._rollouts))
            if oldest in self.outstanding:
                self._rollouts.move_to_end(oldest)
            else:
                del self._rollouts[oldest]

    def note_arrival(self, task_id: str) -> None:
        """Notes that a trajectory names this rollout, whether it is accepted or not."""
        if (rollout := self._rollouts.get(task_id)) is not None:
            rollout.heard_of = True

    def check(self, trajectory: Trajectory) -> None:
        """Raises when a proven sender speaks for another node, or for a rollout that is not awaited."""
        if not trajectory.node_id:
            return
        owner = self._node_of(trajectory.actor_id)
        if owner not in ("", trajectory.node_id):
            message = f"actor {trajectory.actor_id!r} is of node {owner!r}, and {trajectory.node_id!r} sent this"
            raise PermissionDenied(message, reason="WRONG_NODE")
        if self._is_leftover(trajectory.task_id):
            message = f"the rollout {trajectory.task_id!r} was asked for before this learner was started again"
            raise FailedPrecondition(message, reason="OLD_TASK")
        rollout = self._rollouts.get(trajectory.task_id)
        if rollout is None or rollout.delivered:
            what = "was not asked for by this learner" if rollout is None else "was delivered before"
            raise FailedPrecondition(f"the rollout {trajectory.task_id!r} {what}", reason=UNASKED)

    def deliver(self, trajectory: Trajectory) -> None:
        """Notes that a rollout's trajectory was accepted; its outcome may follow later."""
        self.outstanding.discard(trajectory.task_id)
        if (rollout := self._rollouts.get(trajectory.task_id)) is not None:
            if not (rollout.delivered or rollout.ended):
                self.deadline.took(self._clock() - rollout.asked_at)
            rollout.delivered = True
        self._forgive(trajectory.actor_id)

    def end(self, task_id: str, *, timed_out: bool) -> RolloutEnd:
        """Notes a rollout's outcome. A rollout that is not remembered counts as heard of."""
        self.outstanding.discard(task_id)
        rollout = self._rollouts.get(task_id)
        if rollout is None or rollout.ended:
            return RolloutEnd(heard_of=True, slow=False)
        rollout.ended = True
        slow = timed_out and not rollout.delivered and self.deadline.missed(rollout.seconds)
        return RolloutEnd(rollout.heard_of, slow)
