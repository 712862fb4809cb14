"""Actors as the scheduler sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from parlmesh.v1 import scheduler_service_pb2 as pb


class ActorState(StrEnum):
    """What an actor is doing."""

    READY = "ready"
    PAUSED = "paused"
    """Finishes what it has and takes nothing until resumed."""
    DRAINING = "draining"
    """Finishes what it has, then leaves."""
    LOST = "lost"
    """Its stream is gone; its leases were given away."""
    QUARANTINED = "quarantined"
    """Its node gave bad answers: it gets nothing for a while."""


@dataclass(frozen=True, slots=True)
class ActorInfo:
    """One actor of the fleet (S1 calls it a worker)."""

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
    """Newest policy version it acts with; 0 = none."""
    quarantine_reason: str = ""
    """Why its node is in quarantine."""


_STATES: Mapping[int, ActorState] = {
    pb.ACTOR_STATE_READY: ActorState.READY,
    pb.ACTOR_STATE_PAUSED: ActorState.PAUSED,
    pb.ACTOR_STATE_DRAINING: ActorState.DRAINING,
    pb.ACTOR_STATE_QUARANTINED: ActorState.QUARANTINED,
}


def actor_from_proto(message: pb.Actor) -> ActorInfo:
    """A state this client does not know is taken as LOST: no reason to count on the actor."""
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
