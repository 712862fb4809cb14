"""Parents before children, so that a window never submits a task whose parent the scheduler has not seen."""

import heapq
from collections.abc import Sequence

from .requests import TaskRequest


def parents_first(requests: Sequence[TaskRequest]) -> Sequence[int]:
    """The order nearest to the given one in which every parent comes before its children; cycles come last."""
    if not any(isinstance(request, TaskRequest) and request.dependencies for request in requests):
        return range(len(requests))
    names = {request.task_id: index for index, request in enumerate(requests) if _is_named(request)}
    parents = {index: found for index, request in enumerate(requests) if (found := _parents(request, names))}
    missing = {index: len(found) for index, found in parents.items()}
    children: dict[int, list[int]] = {}
    for index in missing:
        for parent in parents[index]:
            children.setdefault(parent, []).append(index)
    order: list[int] = []
    ready = [index for index in range(len(requests)) if index not in missing]
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for child in children.get(index, ()):
            missing[child] -= 1
            if not missing[child]:
                del missing[child]
                heapq.heappush(ready, child)
    return [*order, *sorted(missing)]


def _is_named(request: object) -> bool:
    return isinstance(request, TaskRequest) and bool(request.task_id)


def _parents(request: object, names: dict[str, int]) -> set[int]:
    dependencies = request.dependencies if isinstance(request, TaskRequest) else ()
    return {names[name] for name in dependencies if name in names}
