"""Federated rounds for programs: one call per round over named nodes, through the learner's federation service."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio

from parlmesh.errors import DeadlineExceeded, FailedPrecondition, InvalidInput
from parlmesh.rpc import error_from_rpc
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.v1.federation_service_pb2_grpc import FederationServiceStub
from parlmesh.wire import struct_from_proto, struct_to_proto

from ..controller import PARLController

_CALL_SECONDS = 60.0
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class GlobalModel:
    """The result of one round."""

    federation_id: str
    round: int
    version: int
    """Version of the model that the round produced; 0 when too few updates counted and the model is unchanged."""
    digest: str
    """SHA-256 of the model's file."""
    updates: Mapping[str, str]
    """By node: empty = accepted, otherwise the reason for the refusal."""
    metrics: Mapping[str, Any]
    seconds: float


class PARLFederatedOrchestrator:
    """Rounds on the fleet of one controller, which needs the learner's address.

    The first call starts a federation of the nodes; it then runs by itself, and each call returns the next round.
    """

    def __init__(self, controller: PARLController, configuration: Mapping[str, Any] | None = None) -> None:
        self._controller = controller
        self._configuration = dict(configuration or {})
        self._federation_id = ""
        self._nodes: tuple[str, ...] = ()
        self._told = 0

    async def parallel_training_round(self, nodes: Sequence[str], *, timeout: float = 300.0) -> GlobalModel:  # noqa: ASYNC109
        """All nodes train at the same time, and their updates are aggregated; returns when the round has ended."""
        wanted = tuple(sorted(set(nodes)))
        if not wanted:
            raise InvalidInput("a round needs at least one node")
        if not self._federation_id:
            await self._start(wanted)
        elif wanted != self._nodes:
            raise InvalidInput(f"this federation has {len(self._nodes)} other nodes; stop() it before starting another")
        try:
            async with asyncio.timeout(timeout):
                while True:
                    found = await self._next()
                    if found is not None:
                        return found
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise DeadlineExceeded(f"round {self._told + 1} has not ended after {timeout:g} s") from None

    async def stop(self) -> None:
        """Ends the federation after its present round; the next call starts another."""
        if self._federation_id:
            await self._call("StopFederation", pb.StopFederationRequest(federation_id=self._federation_id))
        self._federation_id, self._nodes, self._told = "", (), 0

    async def _start(self, nodes: tuple[str, ...]) -> None:
        given = self._configuration
        selection = {"min_nodes": len(nodes), **given.get("selection", {}), "nodes": list(nodes)}
        values = {"quorum": len(nodes), **given, "selection": selection}
        request = pb.StartFederationRequest(configuration=struct_to_proto(values))
        self._federation_id = (await self._call("StartFederation", request)).federation.federation_id
        self._nodes = nodes

    async def _next(self) -> GlobalModel | None:
        """The first ended round after the last one returned."""
        token, ended = "", dict[int, pb.Round]()
        while True:
            request = pb.ListRoundsRequest(federation_id=self._federation_id, page_token=token)
            page = await self._call("ListRounds", request)
            for each in page.rounds:
                if each.state != pb.ROUND_STATE_COLLECTING and each.number > self._told:
                    ended[each.number] = each
            token = page.next_page_token
            if not token or any(each.number <= self._told for each in page.rounds):
                break
        if not ended:
            await self._check()
            return None
        found = ended[min(ended)]
        self._told = found.number
        return GlobalModel(
            self._federation_id,
            found.number,
            found.policy_version,
            found.digest,
            {update.node_id: update.refusal for update in found.updates},
            struct_from_proto(found.metrics),
            found.seconds,
        )

    async def _check(self) -> None:
        request = pb.GetFederationRequest(federation_id=self._federation_id)
        federation = (await self._call("GetFederation", request)).federation
        if federation.state != pb.FEDERATION_STATE_RUNNING:
            why = federation.reason or "all its rounds are done"
            raise FailedPrecondition(f"federation {self._federation_id} has ended: {why}", reason="FEDERATION_ENDED")

    async def _call(self, method: str, request: Any) -> Any:
        channel = self._controller._learner_at("parallel_training_round")
        try:
            return await getattr(FederationServiceStub(channel), method)(request, timeout=_CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
