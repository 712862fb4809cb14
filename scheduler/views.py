"""Answers that only look at the core: lists, numbers, the trace."""

from parlmesh.errors import InvalidInput
from parlmesh.v1 import scheduler_service_pb2 as pb

from . import translation
from .core import Core
from .placement import ActorState
from .task import Task, TaskState
from .trace import Attempt

DEFAULT_PAGE = 100
MAX_PAGE = 1000
MAX_LOOKED_AT = 100_000
DEFAULT_TRACE_SECONDS = 60
MAX_TRACE_SECONDS = 3600


def list_tasks(core: Core, request: pb.ListTasksRequest, submitters: str = "") -> pb.ListTasksResponse:
    """Newest first, of submitters that begin so; the page token is the number of the last task looked at.

    A page that looks for rare tasks among very many may be short, so that the other callers need not wait for it.
    """
    size = _page_size(request.page_size)
    before = _page_token(request.page_token)
    states = frozenset[int](request.states)
    page: list[Task] = []
    token, last = "", 0
    older = (task for task in reversed(core.life.tasks.values()) if before is None or task.number < before)
    for looked_at, task in enumerate(older):
        if len(page) == size or looked_at == MAX_LOOKED_AT:
            token = str(last)
            break
        last = task.number
        wanted = (not states or task.state in states) and (not request.kind or task.kind == request.kind)
        if wanted and task.submitter.startswith(submitters):
            page.append(task)
    offset = core.life.wall_offset
    tasks = [translation.task_to_proto(task, offset, payload=False) for task in page]
    return pb.ListTasksResponse(tasks=tasks, next_page_token=token)


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


def attempts(core: Core, seconds: int, now: float) -> list[Attempt]:
    """What a trace of the last `seconds` shows."""
    if seconds > MAX_TRACE_SECONDS:
        raise InvalidInput(f"seconds is {seconds}; it must be 0 to {MAX_TRACE_SECONDS}", reason="INVALID_WINDOW")
    life = core.life
    return life.trace.attempts(life.retention.newest_first(), now, seconds or DEFAULT_TRACE_SECONDS)


def _page_size(size: int) -> int:
    if size > MAX_PAGE:
        raise InvalidInput(f"page_size is {size}; it must be 0 to {MAX_PAGE}", reason="INVALID_PAGE_SIZE")
    return size or DEFAULT_PAGE


def _page_token(token: str) -> int | None:
    if token and not token.isdecimal():
        raise InvalidInput(f'page_token "{token[:40]}" is not one that was given out', reason="INVALID_PAGE_TOKEN")
    return int(token) if token else None
