"""The rollouts that a fleet was asked for, and what came of each."""

from collections import OrderedDict
from collections.abc import Callable, Collection

from parlmesh.errors import FailedPrecondition, PermissionDenied
from parlmesh.types import Trajectory

from .rollout_deadline import RolloutDeadline
from .sender_strikes import UNASKED

# A trajectory may come long after its rollout was given up.
_REMEMBERED_TASKS = 10_000


class AskedRollouts:
    """Of one run, by the ids of their tasks."""

    def __init__(
        self,
        most_seconds: float,
        *,
        node_of: Callable[[str], str],
        is_leftover: Callable[[str], bool],
        forgive: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """`node_of` an actor is empty when it is not known, `is_leftover` a task of the learner's life before, and
        `forgive` hears of every actor that delivers."""
        self.outstanding: set[str] = set()
        """Those that have neither delivered nor ended."""
        self.deadline = RolloutDeadline(most_seconds)
        self._node_of = node_of
        self._is_leftover = is_leftover
        self._forgive = forgive
        self._clock = clock
        self._delivered: OrderedDict[str, bool] = OrderedDict()
        # Those of which nothing came yet, good or bad.
        self._unheard: set[str] = set()

    def ask(self, task_ids: Collection[str]) -> None:
        """They have just been submitted."""
        self.outstanding.update(task_ids)
        self._unheard.update(task_ids)
        self.deadline.ask(task_ids, self._clock())
        self._delivered.update((task_id, False) for task_id in task_ids)
        while len(self._delivered) > max(_REMEMBERED_TASKS, 2 * len(self.outstanding)):
            self._unheard.discard(self._delivered.popitem(last=False)[0])

    def came(self, task_id: str) -> None:
        """A trajectory that speaks of this rollout is here, whatever becomes of it."""
        self._unheard.discard(task_id)

    def check(self, trajectory: Trajectory) -> None:
        """Raises when a proven sender speaks for another, or of what nobody asked it for."""
        if not trajectory.node_id:
            return
        owner = self._node_of(trajectory.actor_id)
        if owner not in ("", trajectory.node_id):
            message = f"actor {trajectory.actor_id!r} is of node {owner!r}, and {trajectory.node_id!r} sent this"
            raise PermissionDenied(message, reason="WRONG_NODE")
        if self._is_leftover(trajectory.task_id):
            message = f"the rollout {trajectory.task_id!r} was asked for before this learner was started again"
            raise FailedPrecondition(message, reason="OLD_TASK")
        if self._delivered.get(trajectory.task_id, True):
            known = trajectory.task_id in self._delivered
            what = "was delivered before" if known else "was not asked for by this learner"
            raise FailedPrecondition(f"the rollout {trajectory.task_id!r} {what}", reason=UNASKED)

    def deliver(self, trajectory: Trajectory) -> None:
        """The trajectory of a rollout is here; its outcome may follow later."""
        self.outstanding.discard(trajectory.task_id)
        if trajectory.task_id in self._delivered:
            self._delivered[trajectory.task_id] = True
            self.deadline.deliver(trajectory.task_id, self._clock())
        self._forgive(trajectory.actor_id)

    def end(self, task_id: str) -> bool:
        """Its outcome is here; whether anything of it came before."""
        self.outstanding.discard(task_id)
        heard = task_id not in self._unheard
        self._unheard.discard(task_id)
        return heard
