"""PolicyService of a relay: decode, call, encode."""

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from parlmesh.distribution.encoding_numbers import encoding_of
from parlmesh.distribution.policy_messages import PolicyEncodings, policy_header
from parlmesh.errors import FailedPrecondition
from parlmesh.rpc.server import Service
from parlmesh.rpc.server.downloads import Downloads
from parlmesh.rpc.server.service_registration import service_of
from parlmesh.v1 import policy_service_pb2 as pb
from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceServicer

from . import metrics
from .policy_source import Source

Context = grpc.aio.ServicerContext[Any, Any]


class RelayServicer(PolicyServiceServicer):
    """The part of PolicyService that a relay implements."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._encodings = PolicyEncodings(metrics.POLICIES)
        self._downloads = Downloads()

    async def GetPolicy(  # type: ignore[override]
        self, request: pb.GetPolicyRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Yields serialised messages."""
        published = await self._source.get(request)
        if request.have_version == request.version:
            yield pb.GetPolicyResponse(header=policy_header(published), not_modified=True).SerializeToString()
            return
        size = len(published.blob.data)
        # While waiting for a place, do not keep an evicted policy alive.
        del published
        async with self._downloads.place(size):
            published, base = await self._source.get(request), self._source.base(request)
            policy = await self._encodings.get(published, encoding_of(request.encoding), base)
            metrics.POLICIES.sent_bytes.labels(policy.encoding).inc(policy.size_bytes)
            for message in policy:
                yield message

    async def WatchPolicy(  # type: ignore[override]
        self, request: pb.WatchPolicyRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Refused: only the learner announces versions, so a relay need not be trusted."""
        raise FailedPrecondition("a relay does not announce versions; watch the learner", reason="RELAY")
        yield b""

    @property
    def service(self) -> Service:
        """The service to register."""
        methods = ("GetPolicy", "WatchPolicy")
        return service_of(pb.DESCRIPTOR, "PolicyService", self, writes_encoded=methods)
