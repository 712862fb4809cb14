"""Dependencies between tasks: checked once at submit, then counted down. No recursion, so chains may be any length."""

from collections.abc import Mapping, Sequence

from parlmesh.errors import InvalidInput
from parlmesh.exception_text import first_line

from .task import Failure, Task


def check(batch: Mapping[str, Task], known: Mapping[str, Task]) -> None:
    """Refuses a batch that names unknown tasks or has a circle. Known tasks cannot depend on new ones."""
    inside = False
    for task in batch.values():
        for parent_id in task.dependencies:
            if parent_id in batch:
                inside = True
            elif parent_id not in known:
                raise InvalidInput(
                    f'task "{task.task_id}" depends on "{parent_id}", which is unknown or was finished too long ago',
                    reason="UNKNOWN_DEPENDENCY",
                    task_id=task.task_id,
                    dependency=parent_id,
                )
    if inside:
        _check_circles(batch)


def _check_circles(batch: Mapping[str, Task]) -> None:
    """Kahn's algorithm removes tasks without open parents; the remaining ones are on a cycle or depend on one."""
    open_parents = {
        task_id: sum(1 for parent in dict.fromkeys(task.dependencies) if parent in batch)
        for task_id, task in batch.items()
    }
    children: dict[str, list[str]] = {}
    for task_id, task in batch.items():
        for parent_id in dict.fromkeys(task.dependencies):
            if parent_id in batch:
                children.setdefault(parent_id, []).append(task_id)
    removable = [task_id for task_id, count in open_parents.items() if not count]
    removed = 0
    while removable:
        removed += 1
        for child_id in children.get(removable.pop(), ()):
            open_parents[child_id] -= 1
            if not open_parents[child_id]:
                removable.append(child_id)
    if removed < len(batch):
        stuck = next(task_id for task_id, count in open_parents.items() if count)
        raise InvalidInput(
            f'the dependencies of task "{stuck}" form a cycle, or depend on one',
            reason="CYCLIC_DEPENDENCY",
            task_id=stuck,
        )


def attach(task: Task, known: Mapping[str, Task]) -> Task | None:
    """Counts the unfinished parents and enters the task with them; returns a parent that ended badly, if any."""
    for parent_id in dict.fromkeys(task.dependencies):
        parent = known.get(parent_id)
        # A forgotten parent had succeeded, or its children would have ended with it.
        if parent is None:
            continue
        if not parent.final:
            task.missing += 1
            if parent.children is None:
                parent.children = []
            parent.children.append(task)
        elif parent.failure is not None:
            return parent
    return None


def release(parent: Task) -> Sequence[Task]:
    """Takes a succeeded parent off its children's counts; returns the children that wait for nothing more."""
    children, parent.children = parent.children, None
    if not children:
        return ()
    for child in children:
        child.missing -= 1
    return [child for child in children if not child.missing and not child.final]


def doomed(parent: Task) -> Sequence[Task]:
    """The unfinished children of a parent that did not succeed: they end with it."""
    children, parent.children = parent.children, None
    return [child for child in children if not child.final] if children else ()


def failure_of(parent: Task) -> Failure:
    """Why a task that depends on this one cannot run: the first task of a chain that failed, however long it is."""
    if parent.failure is not None and parent.failure.reason == "DEPENDENCY_FAILED":
        return parent.failure
    why = first_line(parent.failure.message) if parent.failure is not None else ""
    return Failure("DEPENDENCY_FAILED", f'dependency "{parent.task_id}" ended {parent.state.name}: {why}'[:1000])
