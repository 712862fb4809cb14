"""The results of other tasks that a task needs: the scheduler sends them with its assignment, and no client carries
them."""

from collections.abc import Mapping

from parlmesh.v1.fleet_service_pb2 import TaskInput
from parlmesh.wire.fields import field_head, varint

from ..core.task import SUCCEEDED, Task

# As it appears in JSON; a task that contains this by chance gets a result it does not use.
_MARK = b"$result"
_INPUTS = b"\x32"
_RESULT = 2


def encoded_inputs(task: Task, known: Mapping[str, Task], limit_bytes: int) -> bytes:
    """The `inputs` of an assignment: results of dependencies that its parameters name, as long as they fit."""
    if _MARK not in task.body:
        return b""
    parts: list[bytes] = []
    room = limit_bytes - len(task.body)
    for task_id in dict.fromkeys(task.dependencies):
        if task_id.encode() in task.body:
            encoded = _input(task_id, known.get(task_id), room)
            room -= len(encoded)
            parts += (_INPUTS, varint(len(encoded)), encoded)
    return b"".join(parts)


def _input(task_id: str, parent: Task | None, room: int) -> bytes:
    if parent is None or parent.state is not SUCCEEDED:
        missing = f'the result of task "{task_id}" is no longer kept (the scheduler\'s retention)'
    elif len(parent.result) > room:
        missing = (
            f'the result of task "{task_id}" has {len(parent.result)} bytes, and a message to the actor has room for '
            f"{max(0, room)} more (listen.max_message_bytes of the scheduler, limits.message_bytes of the actor)"
        )
    else:
        head = TaskInput(task_id=task_id).SerializeToString()
        return head + field_head(_RESULT, len(parent.result)) + parent.result
    return TaskInput(task_id=task_id, missing=missing).SerializeToString()
