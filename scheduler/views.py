"""Answers that only look at the core: lists, numbers, the trace."""

from itertools import islice

from parlmesh.errors import InvalidInput
from parlmesh.v1 import scheduler_service_pb2 as pb

from . import translation
from .core import Core
from .placement import ActorState
from .task import TaskState

DEFAULT_PAGE = 100
MAX_PAGE = 1000
DEFAULT_TRACE_SECONDS = 60
MAX_TRACE_SECONDS = 3600


def list_tasks(core: Core, request: pb.ListTasksRequest) -> pb.ListTasksResponse:
    """Newest first; the page token is the number of the last task shown."""
    size = _page_size(request.page_size)
    before = _page_token(request.page_token)
    states = frozenset[int](request.states)
    found = (
        task
        for task in reversed(core.life.tasks.values())
        if (before is None or task.number < before)
        and (not states or task.state in states)
        and (not request.kind or task.kind == request.kind)
    )
    page = list(islice(found, size + 1))
    offset = core.life.wall_offset
    return pb.ListTasksResponse(
        tasks=[translation.task_to_proto(task, offset, payload=False) for task in page[:size]],
        next_page_token=str(page[size - 1].number) if len(page) > size else "",
    )


def list_actors(core: Core, request: pb.ListActorsRequest) -> pb.ListActorsResponse:
    states, offset = frozenset[int](request.states), core.life.wall_offset
    actors = [actor for actor in core.life.fleet.actors.values() if not states or actor.state in states]
    actors.sort(key=lambda actor: actor.actor_id)
    return pb.ListActorsResponse(actors=[translation.actor_to_proto(actor, offset) for actor in actors])


def statistics(core: Core, now: float) -> pb.GetStatisticsResponse:
    counts = core.life.statistics
    ready = [actor for actor in core.life.fleet.actors.values() if actor.state is ActorState.READY]
    slots = sum(actor.slots for actor in ready)
    return pb.GetStatisticsResponse(
        active_workers=sum(1 for actor in ready if actor.leases),
        ready_workers=len(ready),
        queued_tasks=counts.by_state[TaskState.QUEUED],
        running_tasks=counts.by_state[TaskState.RUNNING],
        waiting_tasks=counts.by_state[TaskState.WAITING],
        completed_tasks=counts.by_state[TaskState.SUCCEEDED],
        failed_tasks=counts.by_state[TaskState.FAILED] + counts.by_state[TaskState.QUARANTINED],
        cancelled_tasks=counts.by_state[TaskState.CANCELLED],
        retried_tasks=counts.retried,
        stale_results=counts.stale_results,
        avg_task_latency_ms=counts.mean_latency(now) * 1e3,
        throughput_tps=counts.rate(now),
        policy_update_time_ms=core.sessions.policy_update_seconds * 1e3,
        worker_utilization=sum(actor.running() for actor in ready) / slots if slots else 0.0,
    )


def trace(core: Core, seconds: int, now: float) -> str:
    if seconds > MAX_TRACE_SECONDS:
        raise InvalidInput(f"seconds is {seconds}; it must be 0 to {MAX_TRACE_SECONDS}", reason="INVALID_WINDOW")
    life = core.life
    return life.trace.to_json(life.retention.newest_first(), now, seconds or DEFAULT_TRACE_SECONDS, life.wall_offset)


def _page_size(size: int) -> int:
    if size > MAX_PAGE:
        raise InvalidInput(f"page_size is {size}; it must be 0 to {MAX_PAGE}", reason="INVALID_PAGE_SIZE")
    return size or DEFAULT_PAGE


def _page_token(token: str) -> int | None:
    if token and not token.isdecimal():
        raise InvalidInput(f'page_token "{token[:40]}" is not one that was given out', reason="INVALID_PAGE_TOKEN")
    return int(token) if token else None
