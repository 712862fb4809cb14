"""What the tasks of one owner may be: so many unfinished, of so many bytes, so often. Part of the core: no I/O.

An owner is an identity, or all identities of a namespace together. Without security tasks are nobody's, and only the
queue's own limits hold for them.
"""

from collections.abc import Iterable, Sequence

from parlmesh.errors import ResourceExhausted
from parlmesh.rates import Rates
from parlmesh.security.config import QuotaConfig

from .task import Task

RETRY_SECONDS = 1.0


def owner_in(submitter: str) -> str:
    """The owner of a task of which a journal knows the submitter alone: its namespace, or what was claimed."""
    namespace, slash, _ = submitter.partition("/")
    return f"{namespace}/" if slash else submitter


class Allowances:
    """Counts by owner; whoever has nothing unfinished is not kept."""

    def __init__(self, quotas: QuotaConfig) -> None:
        self._quotas = quotas
        self._rates: Rates[str] = Rates(quotas.tasks_per_second)
        self.held: dict[str, tuple[int, int]] = {}
        """Tasks and bytes."""

    def check(self, owner: str, new: Sequence[Task], now: float) -> None:
        """ResourceExhausted when the owner may not submit these now."""
        quotas, count, size = self._quotas, len(new), sum([len(task.body) for task in new])
        tasks, held_bytes = self.held.get(owner, (0, 0))
        if tasks + count > quotas.tasks:
            raise self._refusal(
                owner, f"has {tasks} unfinished tasks and submits {count}", "tasks", quotas.tasks, "TOO_MANY_OWN_TASKS"
            )
        if held_bytes + size > quotas.task_bytes:
            what = f"has unfinished tasks of {held_bytes} bytes and submits {size}"
            raise self._refusal(owner, what, "task_bytes", quotas.task_bytes, "TOO_MANY_OWN_TASKS")
        if (wait := self._rates.wait(owner, now, count)) > 0:
            what, rate = f"submits {count} tasks too soon", f"{quotas.tasks_per_second:g}"
            raise self._refusal(owner, what, "tasks_per_second", rate, "TASKS_TOO_OFTEN", wait)

    def take(self, owner: str, new: Sequence[Task], now: float) -> None:
        """They are the owner's, and count until they end."""
        self._rates.take(owner, now, len(new))
        for task in new:
            task.owner = owner
        self._hold(owner, len(new), sum([len(task.body) for task in new]))

    def take_again(self, tasks: Iterable[Task]) -> None:
        """Unfinished tasks of a journal."""
        for task in tasks:
            task.owner = owner_in(task.submitter)
            if task.owner:
                self._hold(task.owner, 1, len(task.body))

    def release(self, task: Task) -> None:
        """It has ended."""
        if task.owner:
            self._hold(task.owner, -1, -len(task.body))

    def _hold(self, owner: str, count: int, size: int) -> None:
        tasks, held_bytes = self.held.get(owner, (0, 0))
        if tasks + count > 0:
            self.held[owner] = (tasks + count, held_bytes + size)
        else:
            self.held.pop(owner, None)

    def _refusal(
        self, owner: str, what: str, setting: str, limit: object, reason: str, wait: float = RETRY_SECONDS
    ) -> ResourceExhausted:
        return ResourceExhausted(
            f'"{owner}" {what}; the limit is {limit} (security.quotas.{setting})',
            reason=reason,
            retry_after_seconds=max(0.1, min(30.0, wait)),
            owner=owner,
            limit=limit,
        )
