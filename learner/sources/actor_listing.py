"""The actors that can collect for a run, as the scheduler last listed them."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import grpc.aio

from parlmesh.rpc import error_from_rpc, pages
from parlmesh.telemetry import get_logger
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

log = get_logger("parlmesh.learner")

_CALL_SECONDS = 10.0
_EVALUATE = "evaluate"


@dataclass(frozen=True, slots=True)
class RolloutActor:
    """An actor that is ready and offers the kind."""

    actor_id: str
    node_id: str
    slots: int


class RolloutActors:
    """The ready actors that offer a kind; empty until the scheduler has listed them."""

    def __init__(self, channel: grpc.aio.Channel, kind: str) -> None:
        self._stub = SchedulerServiceStub(channel)
        self._kind = kind
        self._turns: Iterator[int] = itertools.count()
        self._evaluations: Iterator[int] = itertools.count()
        self.members: Sequence[RolloutActor] = ()
        self._nodes: Mapping[str, str] = {}
        self._evaluators: Sequence[str] = ()

    @property
    def slots(self) -> int:
        """Rollouts that could be collected at once."""
        return sum(member.slots for member in self.members)

    @property
    def actors(self) -> frozenset[str]:
        """Ids of these actors."""
        return frozenset(member.actor_id for member in self.members)

    def node_of(self, actor_id: str) -> str:
        """The node of an actor; empty when it is not known."""
        return self._nodes.get(actor_id, "")

    async def look(self) -> None:
        """Asks the scheduler; without an answer, nothing changes."""
        request = pb.ListActorsRequest(states=[pb.ACTOR_STATE_READY])
        try:
            listing = pages(partial(self._stub.ListActors, timeout=_CALL_SECONDS), request)
            actors = [actor async for page in listing for actor in page.actors]
        except grpc.aio.AioRpcError as error:
            log.debug("actors_unknown", error=error_from_rpc(error).message)
            return
        self.members = [
            RolloutActor(actor.actor_id, actor.node_id, actor.slots) for actor in actors if self._kind in actor.kinds
        ]
        self._nodes = {actor.actor_id: actor.node_id for actor in actors}
        self._evaluators = sorted({actor.node_id for actor in actors if _EVALUATE in actor.kinds})

    def evaluator(self, avoided: Collection[str] = ()) -> str:
        """The node whose turn it is to evaluate, so that no single node decides that a goal is reached. Empty unless
        there are two nodes without avoided actors."""
        bad = {self._nodes.get(actor_id, "") for actor_id in avoided}
        evaluators = [node for node in self._evaluators if node not in bad]
        return evaluators[next(self._evaluations) % len(evaluators)] if len(evaluators) > 1 else ""

    def node_without(self, avoided: Collection[str]) -> str:
        """A node without avoided actors, in turn; empty when there is none, or no reason to choose."""
        if not avoided:
            return ""
        bad = {member.node_id for member in self.members if member.actor_id in avoided}
        good = [member.node_id for member in self.members for _ in range(member.slots) if member.node_id not in bad]
        return good[next(self._turns) % len(good)] if bad and good else ""
