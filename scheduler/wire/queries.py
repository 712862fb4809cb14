"""Answers that only look at the core: lists, statistics, the trace."""

import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from parlmesh import limits
from parlmesh.errors import InvalidInput
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2

from ..core.actors.placement import Actor, ActorState
from ..core.chrome_trace import MAX_EVENTS, Attempt
from ..core.core import Core
from ..core.statistics import worker_utilization
from ..core.task import ANYWHERE, Priority, Task, TaskState
from ..journal.stored_task import StoredTask
from . import hot_messages, messages

DEFAULT_PAGE = 100
MAX_PAGE = 1000
MAX_LOOKED_AT = 100_000
# A finished task of the journal is decoded only when it is looked at, which costs this many times the work.
COST_OF_OPENING = 20
MAX_ACTORS = 100_000
# Actors listed before others get their turn: less than a millisecond of work.
ACTORS_A_TURN = 50
# An answer must fit into a message of 8 MiB, with room for one more task or actor.
MAX_ANSWER_BYTES = 3 * 1024 * 1024
MAX_TASK_BYTES = 7 * 1024 * 1024
LONGEST_TOKEN = 20
DEFAULT_TRACE_SECONDS = 60
MAX_TRACE_SECONDS = 3600


def list_tasks(core: Core, request: pb.ListTasksRequest, submitters: str = "") -> pb.ListTasksResponse:
    """Newest first, of submitters with the prefix `submitters`; the page token is the number of the last task seen.

    A page may be short if it searches for rare tasks among very many, so that other callers need not wait for it.
    """
    size = _page_size(request.page_size) or DEFAULT_PAGE
    before = _number(request.page_token)
    states, kind, offset = frozenset[int](request.states), request.kind, core.life.wall_offset
    prefix = request.task_id_prefix
    # How many tasks can match at most: a search for the few that failed among very many stops at the last of them.
    left = sum(core.life.count(state) for state in TaskState if state in states)
    answer = pb.ListTasksResponse()
    looked_at = answer_bytes = 0
    last: Task | None = None
    for task in _before(core.life.tasks, before):
        if states and not left:
            break
        if looked_at >= MAX_LOOKED_AT or len(answer.tasks) >= size or answer_bytes >= MAX_ANSWER_BYTES:
            answer.next_page_token = str(last.number) if last is not None else ""
            break
        # The state first: it rules out most tasks, and is the cheapest test.
        if states and task.state not in states:
            looked_at += 1
            last = task
            continue
        left -= 1
        looked_at += COST_OF_OPENING if (kind or submitters) and isinstance(task, StoredTask) else 1
        wanted = (not prefix or task.task_id.startswith(prefix)) and (not kind or task.kind == kind)
        if wanted and task.submitter.startswith(submitters):
            message = task_to_proto(task, offset, payload=False)
            answer_bytes += message.ByteSize()
            if answer_bytes > MAX_ANSWER_BYTES and last is not None and answer.tasks:
                answer.next_page_token = str(last.number)
                break
            answer.tasks.append(message)
        last = task
    return answer


def _before(tasks: dict[str, Task], number: int | None) -> Iterator[Task]:
    """Tasks below that number, newest first. They are kept in the order of their numbers."""
    if number is None:
        return reversed(tasks.values())
    # Copying the references is far cheaper than looking at each.
    kept = list(tasks.values())
    del kept[bisect_left(kept, number, key=lambda task: task.number) :]
    return reversed(kept)


def get_task(core: Core, task: Task) -> pb.GetTaskResponse:
    """A task with its result, and with its payload if it fits."""
    message = task_to_proto(task, core.life.wall_offset, payload=True)
    if message.ByteSize() > MAX_TASK_BYTES:
        message.spec.ClearField("payload")
    return pb.GetTaskResponse(task=message)


def list_actors(core: Core, request: pb.ListActorsRequest, now: float) -> pb.ListActorsResponse:
    """Ordered by id; the page token has the last one."""
    *_, answer = listing_actors(core, request, now)
    assert answer is not None
    return answer


def listing_actors(core: Core, request: pb.ListActorsRequest, now: float) -> Iterator[pb.ListActorsResponse | None]:
    """Builds the list in steps and answers after the last: a thousand actors at once would hold up every stream."""
    size = _page_size(request.page_size) or MAX_ACTORS
    states = frozenset[int](request.states)
    after = _last_actor(request.page_token)
    actors = [
        actor
        for actor in core.life.fleet.actors.values()
        if actor.actor_id > after and (not states or actor.state in states)
    ]
    actors.sort(key=lambda actor: actor.actor_id)
    answer, answer_bytes = pb.ListActorsResponse(), 0
    for number, actor in enumerate(actors, 1):
        message = actor_message(core, actor, now)
        answer_bytes += message.ByteSize()
        if answer.actors and (answer_bytes > MAX_ANSWER_BYTES or len(answer.actors) == size):
            answer.next_page_token = _token(answer.actors[-1].actor_id)
            break
        answer.actors.append(message)
        if number % ACTORS_A_TURN == 0:
            yield None
    yield answer


def commanded(core: Core, actors: Sequence[Actor], now: float) -> pb.UpdateActorsResponse:
    """As many actors as fit into an answer."""
    answer, answer_bytes = pb.UpdateActorsResponse(), 0
    for actor in actors:
        message = actor_message(core, actor, now)
        answer_bytes += message.ByteSize()
        if answer_bytes > MAX_ANSWER_BYTES and answer.actors:
            break
        answer.actors.append(message)
    return answer


def actor_message(core: Core, actor: Actor, now: float) -> pb.Actor:
    return messages.actor_to_proto(actor, core.life.wall_offset, core.sessions.quarantine.strikes, now)


def statistics(core: Core, now: float) -> pb.GetStatisticsResponse:
    counts = core.life.statistics
    actors = core.life.fleet.actors.values()
    ready = [actor for actor in actors if actor.state is ActorState.READY]
    queue = core.life.queue
    oldest = queue.oldest()
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
        worker_utilization=worker_utilization(actors),
        queued_by_priority={each.name.lower(): queue.ready_by_priority[each] for each in Priority},
        oldest_queued_seconds=max(0.0, now - oldest.submit_time) if oldest is not None else 0.0,
    )


def attempts(core: Core, request: pb.GetTraceRequest, now: float) -> list[Attempt]:
    """The attempts that the requested trace shows."""
    seconds, most = request.seconds, request.max_attempts
    if seconds > MAX_TRACE_SECONDS:
        raise InvalidInput(f"seconds is {seconds}; it must be 0 to {MAX_TRACE_SECONDS}", reason="INVALID_WINDOW")
    if most > MAX_EVENTS:
        raise InvalidInput(f"max_attempts is {most}; it must be 0 to {MAX_EVENTS}", reason="INVALID_WINDOW")
    life = core.life
    window = seconds or DEFAULT_TRACE_SECONDS
    finished = life.retention.newest_first()
    return life.trace.attempts(finished, now, window, most or MAX_EVENTS, request.task_id_prefix)


def _page_size(size: int) -> int:
    if size > MAX_PAGE:
        raise InvalidInput(f"page_size is {size}; it must be 0 to {MAX_PAGE}", reason="INVALID_PAGE_SIZE")
    return size


def _number(token: str) -> int | None:
    if token and not (len(token) <= LONGEST_TOKEN and token.isascii() and token.isdecimal()):
        raise _not_given_out(token)
    return int(token) if token else None


def _token(actor_id: str) -> str:
    """Has a checksum, because any text could be the id of a forgotten actor."""
    return f"{zlib.crc32(actor_id.encode()):08x}-{actor_id}"


def _last_actor(token: str) -> str:
    actor_id = token.partition("-")[2]
    if token and (len(actor_id) > limits.ACTOR_ID.most or token != _token(actor_id)):
        raise _not_given_out(token)
    return actor_id


def _not_given_out(token: str) -> InvalidInput:
    return InvalidInput(f"page_token {token[:40]!a} is not from an earlier answer", reason="INVALID_PAGE_TOKEN")


def task_to_proto(task: Task, wall_offset: float, *, payload: bool) -> task_pb2.Task:
    message = task_pb2.Task(
        spec=_spec(task, payload),
        state=task_pb2.TaskState.ValueType(task.state),
        attempts=task.attempts,
        actor_id=task.actor.actor_id if task.actor is not None else "",
        submit_time=messages.timestamp(task.submit_time + wall_offset),
    )
    if task.final:
        message.outcome.CopyFrom(task_pb2.Outcome.FromString(hot_messages.outcome(task)))
        if not payload:
            message.outcome.ClearField("result")
    return message


def _spec(task: Task, payload: bool) -> task_pb2.TaskSpec:
    spec = task_pb2.TaskSpec(
        task_id=task.task_id,
        kind=task.kind,
        priority=task_pb2.Priority.ValueType(task.priority),
        dependencies=task.dependencies,
        max_attempts=task.max_attempts,
        submitter=task.submitter,
    )
    if task.placement != ANYWHERE:
        spec.placement.CopyFrom(task_pb2.Placement(node_id=task.placement.node_id, labels=dict(task.placement.labels)))
    if task.queue_timeout is not None:
        spec.queue_timeout.CopyFrom(messages.duration(task.queue_timeout))
    if task.run_timeout is not None:
        spec.run_timeout.CopyFrom(messages.duration(task.run_timeout))
    if payload:
        assignment = fleet_pb.Assignment.FromString(task.body)
        if assignment.HasField("payload"):
            spec.payload.CopyFrom(assignment.payload)
    return spec
