"""Translates between the contract's messages and the core's own types. The core decides what is allowed."""

import sys
from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from parlmesh import limits
from parlmesh.harmless_text import visible
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.blob_service_pb2 import BlobTerms

from ..core.actors.actor_sessions import Hello
from ..core.actors.node_quarantine import Strikes
from ..core.actors.placement import Actor
from ..core.task import ANYWHERE, NO_RESULT, NORMAL, AttemptEnd, Failure, LeaseName, Placement, Task

NANOSECONDS = 1_000_000_000
HIGHEST_PORT = 65_535


def task_from_proto(spec: task_pb2.TaskSpec, submitter: str) -> Task:
    """`submitter` stands in if the spec names none; the body is left to the caller."""
    priority = spec.priority or NORMAL
    if priority < 0:
        # An enum field may hold any number, and a negative one cannot even be encoded.
        limits.PRIORITY.check(priority, f'task "{spec.task_id[: limits.SHOWN]}"')
    return Task(
        spec.task_id,
        sys.intern(spec.kind),
        priority=priority,
        dependencies=tuple(spec.dependencies) if spec.dependencies else (),
        placement=_placement(spec.placement) if spec.HasField("placement") else ANYWHERE,
        queue_timeout=seconds_of(spec.queue_timeout) if spec.HasField("queue_timeout") else None,
        run_timeout=seconds_of(spec.run_timeout) if spec.HasField("run_timeout") else None,
        max_attempts=spec.max_attempts,
        submitter=sys.intern(spec.submitter) or submitter,
    )


def hello_from_proto(request: fleet_pb.ConnectRequest, session: int) -> Hello:
    """Leases of results that come with the hello count as held: those results were never acknowledged."""
    hello = request.hello
    # Counted before they are copied; the core checks each of them.
    if hello.kinds:
        limits.KINDS.check(len(hello.kinds), "a hello")
    limits.LABELS.check(len(hello.labels), "a hello")
    limits.LEASES.check(len(hello.leases), "a hello")
    limits.RESULTS.check(len(request.results), "a hello")
    held = [*hello.leases, *(result.lease for result in request.results)]
    return Hello(
        session=session,
        actor_id=hello.actor_id,
        node_id=hello.node_id,
        incarnation=hello.incarnation,
        slots=hello.slots,
        kinds=tuple(hello.kinds),
        labels=tuple(hello.labels.items()),
        leases=tuple(LeaseName(lease.task_id, lease.lease_id, lease.attempt) for lease in held),
        message_bytes=hello.message_bytes,
        metrics_port=hello.metrics_port if hello.metrics_port <= HIGHEST_PORT else 0,
    )


def result_from_proto(result: fleet_pb.TaskResult) -> AttemptEnd:
    lease = result.lease
    end = result.WhichOneof("end")
    failure = None
    if end != "result":
        failure = _failure(result.failure) if end else NO_RESULT
    payload = result.result.SerializeToString() if failure is None else b""
    return lease.task_id, lease.lease_id, payload, failure, min(limits.RAN.most, max(0.0, seconds_of(result.ran)))


def actor_to_proto(actor: Actor, wall_offset: float, strikes: Strikes, now: float) -> pb.Actor:
    message = pb.Actor(
        actor_id=actor.actor_id,
        node_id=actor.node_id,
        state=pb.ActorState.ValueType(actor.state),
        slots=actor.slots,
        running_tasks=len(actor.leases),
        completed_tasks=actor.completed,
        failed_tasks=actor.failed,
        kinds=sorted(actor.kinds),
        labels=dict(actor.labels),
        last_heartbeat_time=timestamp(actor.last_seen + wall_offset),
        incarnation=max(0, actor.incarnation),
        policy_version=actor.policy_version,
        strikes=strikes.count(actor.node_id, now),
    )
    quarantine = strikes.quarantines.get(actor.node_id)
    if quarantine is not None:
        message.quarantine_reason = quarantine.reason
        message.quarantine_end_time.CopyFrom(timestamp(quarantine.until + wall_offset))
    return message


def welcome_to_bytes(
    leases: Iterable[LeaseName],
    heartbeat_seconds: float,
    lease_seconds: float,
    message_bytes: int,
    newest_incarnation: int,
    blobs: BlobTerms | None = None,
) -> bytes:
    message = fleet_pb.ConnectResponse(
        welcome=fleet_pb.Welcome(
            heartbeat_interval=duration(heartbeat_seconds),
            lease_duration=duration(lease_seconds),
            leases=[fleet_pb.Lease(task_id=name, lease_id=number, attempt=attempt) for name, number, attempt in leases],
            message_bytes=message_bytes,
            newest_incarnation=newest_incarnation,
            blobs=blobs,
        )
    )
    return message.SerializeToString()


def stream_terms_to_bytes(
    memory_id: int, remembers_seconds: float, message_bytes: int, blobs: BlobTerms | None = None
) -> bytes:
    terms = pb.StreamTerms(
        memory_id=memory_id, remembers=duration(remembers_seconds), message_bytes=message_bytes, blobs=blobs
    )
    return pb.SubmitTaskStreamResponse(terms=terms).SerializeToString()


def seconds_of(value: Duration) -> float:
    return float(value.seconds + value.nanos / NANOSECONDS)


def duration(seconds: float) -> Duration:
    """Clamped to the range of the message: the journal of an older scheduler may hold any number."""
    seconds = min(limits.LONGEST_SECONDS, max(0.0, seconds))
    whole, nanos = divmod(round(seconds * NANOSECONDS), NANOSECONDS)
    return Duration(seconds=whole, nanos=nanos)


def timestamp(wall_time: float) -> Timestamp:
    # One clock offset for many tasks is no more accurate than a millisecond.
    whole, millis = divmod(round(wall_time * 1000), 1000)
    return Timestamp(seconds=whole, nanos=millis * 1_000_000)


def _placement(message: task_pb2.Placement) -> Placement:
    return Placement(message.node_id, frozenset(message.labels.items()))


def _failure(message: task_pb2.Failure) -> Failure:
    return Failure(
        limits.FAILURE_REASON.shorten(visible(message.reason)) or "HANDLER_ERROR",
        limits.FAILURE_MESSAGE.shorten(message.message),
        message.retryable,
    )
