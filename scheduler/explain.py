"""Why a task is where it is, in one sentence. Looks at the core and changes nothing."""

from collections import Counter

from .core import Core
from .placement import Actor, ActorState
from .task import Task, TaskState


def explain(core: Core, task: Task, now: float) -> str:
    if task.state is TaskState.WAITING:
        return _waiting(core, task, now)
    if task.state is TaskState.QUEUED:
        return _queued(core, task, now)
    if task.state is TaskState.RUNNING:
        return (
            f'attempt {task.attempts} has been with actor "{task.actor_id}" for {now - task.lease_time:.1f} s; '
            f"its lease ends in {max(0.0, task.expires_at - now):.1f} s unless renewed"
        )
    if task.state is TaskState.SUCCEEDED:
        return f'attempt {task.attempts} succeeded on actor "{task.actor_id}" after {task.ran:.3f} s'
    assert task.failure is not None
    return f"{task.state.name} after {task.attempts} attempts: {task.failure.reason}: {task.failure.message}"


def _waiting(core: Core, task: Task, now: float) -> str:
    if task.missing:
        parents = [parent for parent in task.dependencies if _unfinished(core, parent)]
        named = ", ".join(f'"{parent}"' for parent in parents[:3])
        more = f" and {len(parents) - 3} more" if len(parents) > 3 else ""
        return f"waits for {task.missing} of {len(set(task.dependencies))} dependencies: {named}{more}"
    why = f"{task.failure.reason}: {task.failure.message}" if task.failure is not None else "a failure"
    return f"attempt {task.attempts} ended with {why}; the next one starts in {max(0.0, task.wake_time - now):.1f} s"


def _queued(core: Core, task: Task, now: float) -> str:
    able = list(core.life.fleet.able(task.task_class))
    ready = [actor for actor in able if actor.state is ActorState.READY]
    if not ready:
        return f"no READY actor {_requirement(core, task)}{_others(able)}"
    ahead = core.life.queue.ready - 1
    full = sum(1 for actor in ready if actor.room <= 0)
    waited = f"queued for {now - task.ready_time:.1f} s with priority {task.priority}"
    return f"{waited}; {full} of {len(ready)} READY actors that can run it are full, and {ahead} other tasks are queued"


def _requirement(core: Core, task: Task) -> str:
    """What is asked for and not there, from the first condition that nobody meets."""
    actors = core.life.fleet.actors.values()
    node_id, labels = task.placement
    has_kind = [actor for actor in actors if task.kind in actor.kinds]
    asked = f"has the kind {task.kind}"
    if labels and any(labels <= actor.labels for actor in has_kind) is False and has_kind:
        return f"{asked} and the labels {_labels(labels)}"
    if labels:
        asked += f" and the labels {_labels(labels)}"
    return f'{asked} on node "{node_id}"' if node_id else asked


def _others(able: list[Actor]) -> str:
    if not able:
        return ""
    states = Counter(actor.state for actor in able)
    parts = [
        f"{count} that {'has' if count == 1 else 'have'} it {_be(count)} {state.name.lower()}"
        for state, count in sorted(states.items())
    ]
    return "; " + ", ".join(parts)


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _labels(labels: frozenset[tuple[str, str]]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels))


def _unfinished(core: Core, task_id: str) -> bool:
    parent = core.life.tasks.get(task_id)
    return parent is not None and not parent.final
