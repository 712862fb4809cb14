"""Finds a federation's nodes in the scheduler's list of actors. The labels of actors are only claims."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import grpc.aio

from parlmesh.errors import InvalidInput
from parlmesh.federation.config import SelectionConfig
from parlmesh.federation.virtual_nodes import count_in, host_of, nodes_of
from parlmesh.rpc import error_from_rpc, pages
from parlmesh.v1 import scheduler_service_pb2 as pb

from .task_specs import FIT, MASK

if TYPE_CHECKING:
    from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceAsyncStub

_CALL_SECONDS = 10.0
_LONGEST_NAME = 128
# Nodes per federation; any beyond this count as not connected.
_MOST_NODES = 100_000
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class NodesFound:
    """Nodes that can be asked, sorted, and one sentence for every actor that was excluded."""

    nodes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Says which actors were excluded; empty if none were."""
        if not self.left_out:
            return ""
        more = len(self.left_out) - _SHOWN
        shown = "; ".join(self.left_out[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        return f"left out: {shown}"


async def list_nodes(
    scheduler: "SchedulerServiceAsyncStub", selection: SelectionConfig, *, secure: bool = False
) -> NodesFound:
    """Nodes that are ready and can train, in a secure sum if need be; FleetError if the scheduler does not answer."""
    request = pb.ListActorsRequest(states=[pb.ACTOR_STATE_READY])
    try:
        listing = pages(partial(scheduler.ListActors, timeout=_CALL_SECONDS), request)
        actors = [actor async for page in listing for actor in page.actors]
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error
    return nodes_among(actors, selection, secure=secure)


def nodes_among(actors: "Iterable[pb.Actor]", selection: SelectionConfig, *, secure: bool = False) -> NodesFound:
    """The nodes of these actors. A bad label leaves out its own actor only."""
    nodes: set[str] = set()
    left_out: list[str] = []
    wanted, named = selection.labels.items(), frozenset(selection.nodes)
    for actor in actors:
        if FIT not in actor.kinds or not wanted <= dict(actor.labels).items():
            continue
        try:
            if secure and MASK not in actor.kinds:
                raise InvalidInput(f"it runs no tasks of the kind {MASK}, which a secure sum needs")
            found = _nodes_of(actor.node_id, actor.labels, selection.virtual_nodes)
            if len(nodes) + len(found) > _MOST_NODES:
                raise InvalidInput(f"there are {_MOST_NODES} nodes already")
        except InvalidInput as error:
            left_out.append(f"actor {actor.actor_id[:_LONGEST_NAME]!r}: {error.message}")
        else:
            nodes.update(each for each in found if not named or each in named)
    return NodesFound(tuple(sorted(nodes)), tuple(sorted(left_out)))


def _nodes_of(node_id: str, labels: Mapping[str, str], most: int) -> Sequence[str]:
    if not 0 < len(node_id) <= _LONGEST_NAME or host_of(node_id) != node_id:
        raise InvalidInput(f"its node {node_id[:_LONGEST_NAME]!r} is not the name of a host")
    return nodes_of(node_id, count_in(labels, most))
