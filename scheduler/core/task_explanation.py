"""Why a task is where it is, in one sentence. Looks at the core and changes nothing."""

from collections import Counter

from parlmesh.exception_text import first_line

from .actors.placement import Actor, ActorState
from .core import Core
from .task import NOT_BEGUN, Priority, Task, TaskState


def explain(core: Core, task: Task, now: float) -> str:
    if task.state is TaskState.WAITING:
        return _waiting(core, task, now)
    if task.state is TaskState.QUEUED:
        return _queued(core, task, now)
    if task.state is TaskState.RUNNING:
        if task.expires_at == NOT_BEGUN:
            return f'attempt {task.attempts} is sent to actor "{task.actor_id}" once its lease is written down'
        return (
            f'attempt {task.attempts} has been with actor "{task.actor_id}" for {now - task.lease_time:.1f} s; '
            f"its lease ends in {max(0.0, task.expires_at - now):.1f} s unless renewed"
        )
    if task.state is TaskState.SUCCEEDED:
        return f'attempt {task.attempts} succeeded on actor "{task.actor_id}" after {task.ran:.3f} s'
    assert task.failure is not None
    tried = "1 attempt" if task.attempts == 1 else f"{task.attempts} attempts"
    return f"{task.state.name} after {tried}: {task.failure.reason}: {first_line(task.failure.message)}"


def _waiting(core: Core, task: Task, now: float) -> str:
    if task.missing:
        parents = [parent for parent in task.dependencies if _unfinished(core, parent)]
        named = ", ".join(f'"{parent}"' for parent in parents[:3])
        more = f" and {len(parents) - 3} more" if len(parents) > 3 else ""
        return f"waits for {task.missing} of {len(set(task.dependencies))} dependencies: {named}{more}"
    why = f"{task.failure.reason}: {first_line(task.failure.message)}" if task.failure is not None else "a failure"
    return f"attempt {task.attempts} ended with {why}; the next one starts in {max(0.0, task.wake_time - now):.1f} s"


def _queued(core: Core, task: Task, now: float) -> str:
    able = list(core.life.fleet.able(task.task_class))
    ready = [actor for actor in able if actor.state is ActorState.READY]
    if not ready:
        return f"no READY actor {_requirement(task)}{_away(able)}{_misplaced(core, task, able)}"
    share = core.life.queue.shares.of(task)
    if share is not None and share.held >= share.most:
        return (
            f'the tasks of namespace "{task.owner[:-1]}" hold {share.held} slots, as many as they may at once '
            "(namespace.slots_share); it waits for one of them to end"
        )
    full = sum(1 for actor in ready if actor.room <= 0)
    return (
        f"{full} of {len(ready)} READY actors that can run it {_be(full)} full; it has waited "
        f"{now - task.ready_time:.1f} s with priority {Priority(task.priority).name}, "
        f"and {core.life.queue.ready - 1} other tasks are queued"
    )


def _requirement(task: Task) -> str:
    node_id, labels, _ = task.placement
    asked = f"has the kind {task.kind}"
    if labels:
        asked += f" and the labels {_labels(labels)}"
    if needed := task.task_class.placement.message_bytes:
        asked += f" and takes messages of {needed} bytes (limits.message_bytes)"
    return f'{asked} on node "{node_id}"' if node_id else asked


def _away(able: list[Actor]) -> str:
    """Actors that could run it but are paused, draining or lost."""
    states = Counter(actor.state for actor in able)
    parts = [f"{count} that could {_be(count)} {state.name.lower()}" for state, count in sorted(states.items())]
    return "".join(f"; {part}" for part in parts)


def _misplaced(core: Core, task: Task, able: list[Actor]) -> str:
    """READY actors that have the kind and fail only the placement."""
    smaller = ", or takes less" if task.task_class.placement.message_bytes else ""
    others = [
        actor
        for actor in core.life.fleet.actors.values()
        if actor.state is ActorState.READY and task.kind in actor.kinds and actor not in able
    ]
    return (
        f"; {len(others)} READY with the kind {_be(len(others))} elsewhere or labelled otherwise{smaller}"
        if others
        else ""
    )


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _labels(labels: frozenset[tuple[str, str]]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels))


def _unfinished(core: Core, task_id: str) -> bool:
    parent = core.life.tasks.get(task_id)
    return parent is not None and not parent.final
