"""Statistics of a fleet and of this client."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from parlmesh.v1 import scheduler_service_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class PARLMetrics:
    """The scheduler's counts since it started, and its rates over the last minute."""

    active_workers: int
    """READY workers with at least one running task."""
    ready_workers: int
    queued_tasks: int
    """Ready; waiting for a slot."""
    waiting_tasks: int
    """Waiting for their dependencies or for a retry's back-off."""
    running_tasks: int
    completed_tasks: int
    """Succeeded."""
    failed_tasks: int
    cancelled_tasks: int
    retried_tasks: int
    stale_results: int
    """Results refused because their lease was no longer valid or their node was in quarantine."""
    avg_task_latency_ms: float
    """Submit to outcome."""
    throughput_tps: float
    """Outcomes per second."""
    policy_update_time_ms: float
    """Time from a policy's publication to the actors using it, newest sample; 0 when unknown."""
    worker_utilization: float
    """Busy share of all READY slots, 0 to 1."""
    queued_by_priority: Mapping[str, int]
    """Queued tasks by the name of their priority."""
    oldest_queued_seconds: float
    """Time since the longest-queued task was submitted; 0 when none is queued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCounts:
    """This client's counts since it was opened."""

    pending_tasks: int = 0
    """Submitted by this client and still without an outcome."""
    submitted_tasks: int = 0
    received_outcomes: int = 0
    refused_tasks: int = 0
    resubmitted_tasks: int = 0
    """Sent again because the scheduler had lost them with its memory."""
    forgotten_outcomes: int = 0
    """Tasks that ended while this client was away for longer than the scheduler keeps outcomes."""
    reconnects: int = 0
    foreign_outcomes: int = 0
    """Outcomes that no caller here waited for: repeated, abandoned, or of another client with the same submitter."""
    dropped_outcomes: int = 0
    """Outcomes of `submit_task` or `submit_tasks` that no caller asked for in time; the scheduler may still have them.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PARLStats(PARLMetrics):
    """The fleet's numbers and the client's own."""

    client: ClientCounts


def stats_from_proto(message: pb.GetStatisticsResponse, client: ClientCounts) -> PARLStats:
    """Copies each field of the response to the attribute of the same name."""
    numbers = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    numbers["queued_by_priority"] = dict(message.queued_by_priority)
    return PARLStats(client=client, **numbers)


class ActorState(StrEnum):
    """The state of an actor."""

    READY = "ready"
    PAUSED = "paused"
    """Finishes its tasks and takes no more until resumed."""
    DRAINING = "draining"
    """Finishes its tasks, then leaves."""
    LOST = "lost"
    """Its stream has ended, and its leases were taken back."""
    QUARANTINED = "quarantined"
    """Its node gave bad answers: it gets no tasks for a while."""


@dataclass(frozen=True, slots=True)
class ActorInfo:
    """One actor of the fleet, called a worker elsewhere in the SDK."""

    actor_id: str
    node_id: str
    state: ActorState
    slots: int
    running_tasks: int
    completed_tasks: int
    failed_tasks: int
    kinds: tuple[str, ...]
    labels: Mapping[str, str]
    last_heartbeat_time: datetime
    incarnation: int
    """Grows each time an actor of this id starts."""
    policy_version: int
    """Policy version that a heartbeat last named since its last start; 0 = none."""
    quarantine_reason: str = ""
    """Why its node is in quarantine."""


_STATES: Mapping[int, ActorState] = {
    pb.ACTOR_STATE_READY: ActorState.READY,
    pb.ACTOR_STATE_PAUSED: ActorState.PAUSED,
    pb.ACTOR_STATE_DRAINING: ActorState.DRAINING,
    pb.ACTOR_STATE_QUARANTINED: ActorState.QUARANTINED,
}


def actor_from_proto(message: pb.Actor) -> ActorInfo:
    """A state that this client does not know becomes LOST, so the actor is not counted on."""
    return ActorInfo(
        actor_id=message.actor_id,
        node_id=message.node_id,
        state=_STATES.get(message.state, ActorState.LOST),
        slots=message.slots,
        running_tasks=message.running_tasks,
        completed_tasks=message.completed_tasks,
        failed_tasks=message.failed_tasks,
        kinds=tuple(message.kinds),
        labels=dict(message.labels),
        last_heartbeat_time=message.last_heartbeat_time.ToDatetime(tzinfo=UTC),
        incarnation=message.incarnation,
        policy_version=message.policy_version,
        quarantine_reason=message.quarantine_reason,
    )
