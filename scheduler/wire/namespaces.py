"""Namespaces: an identity of a namespace submits, sees, follows and cancels tasks only within it.

The namespace is the beginning of the submitter, up to the first "/"; identities of the whole fleet are not confined.
"""

from collections.abc import Collection, Iterable, Sequence

from parlmesh.errors import AlreadyExists, PermissionDenied
from parlmesh.security import ANYONE, Identity

from ..blob_ledger import client_writer
from ..core.core import Core
from ..core.queue.submission_limits import check_namespace_limits
from ..core.task import Task


class Tenant:
    """The tasks that one caller may see and change."""

    def __init__(self, core: Core, identity: Identity, fleet_kinds: Collection[str] = ()) -> None:
        self._core = core
        self._fleet_kinds = fleet_kinds
        self._name = identity.name
        self._allowed = core.config.namespaces.get(identity.namespace, core.config.namespace)
        self.prefix = f"{identity.namespace}/" if identity.namespace else ""
        self.owner = "" if identity is ANYONE else self.prefix or identity.name
        """The owner whose allowance its tasks count against; a namespace shares one."""
        self.writer = client_writer(identity) if identity.namespace else ""
        """The writer whose blobs its tasks may refer to; empty = any writer."""

    def submitter(self, claimed: str) -> str:
        """The submitter that a claim stands for; the caller's own name when nothing is claimed."""
        claimed = claimed or self._name
        return claimed if claimed.startswith(self.prefix) else f"{self.prefix}{claimed}"

    def bind(self, tasks: Iterable[Task]) -> None:
        """Puts new tasks into the caller's namespace; only for callers with a `prefix`. Raises NotFound for a
        dependency outside it, and AlreadyExists for the id of a task outside it: the caller's own task would never
        exist.

        Raises PermissionDenied for requests that the operator does not allow the namespace, and for kinds that the
        learner and MAPE-K loops send to nodes. Nodes believe such tasks: one could spend a node's privacy, leave a
        residual in its next update, or make it import an environment.
        """
        for task in tasks:
            if task.kind in self._fleet_kinds:
                raise PermissionDenied(
                    f'kind "{task.kind}" is for identities of the whole fleet, and {self._name} is confined to the '
                    f"namespace {self.prefix[:-1]}",
                    reason="FLEET_KIND",
                )
            self._check_new(task)
            self.check(one for one in task.dependencies if one in self._core.life.tasks)
            task.submitter = self.submitter(task.submitter)

    def _check_new(self, task: Task) -> None:
        taken = self._core.life.tasks.get(task.task_id)
        if taken is None:
            check_namespace_limits(task, self._allowed)
        elif not self.sees(taken):
            raise AlreadyExists(
                f'task id "{task.task_id}" is taken; leave it empty, or choose a long random one',
                reason="TASK_ID_TAKEN",
                task_id=task.task_id,
            )

    def check(self, task_ids: Iterable[str]) -> None:
        """Raises NotFound for a task outside the namespace, as if it did not exist."""
        if self.prefix:
            for task_id in task_ids:
                self.task(task_id)

    def task(self, task_id: str) -> Task:
        """The task, if the caller may see it."""
        task = self._core.task(task_id)
        return task if self.sees(task) else self._core.refuse_unknown(task_id)

    def seen(self, task_ids: Sequence[str]) -> tuple[list[str], list[str]]:
        """The ids that the caller knows, and those it does not."""
        tasks, asked = self._core.life.tasks, list(dict.fromkeys(task_ids))
        known = {name for name in asked if name in tasks and self.sees(tasks[name])}
        return [name for name in asked if name in known], [name for name in asked if name not in known]

    def sees(self, task: Task) -> bool:
        """Whether the task is in the caller's namespace."""
        return task.submitter.startswith(self.prefix)
