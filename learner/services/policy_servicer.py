"""PolicyService over gRPC: decode, call, encode."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc.aio

from parlmesh.distribution.encoding_numbers import encoding_of
from parlmesh.distribution.policy_messages import PolicyEncodings, Published, policy_header
from parlmesh.errors import NotFound
from parlmesh.policies.policy_compression import Encoding
from parlmesh.rpc.server import Service
from parlmesh.rpc.server.downloads import Downloads
from parlmesh.rpc.server.service_registration import service_of
from parlmesh.v1 import policy_service_pb2 as pb
from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceServicer

from .. import metrics
from ..policies.registry import PolicyRegistry
from .server_stop import unless

Context = grpc.aio.ServicerContext[Any, Any]


class PolicyServicer(PolicyServiceServicer):
    """PolicyService."""

    def __init__(self, registry_of: Callable[[str], PolicyRegistry], stopping: asyncio.Event) -> None:
        self._registry_of = registry_of
        self._stopping = stopping
        self._encodings = PolicyEncodings(metrics.POLICIES)
        self._downloads = Downloads()

    async def GetPolicy(  # type: ignore[override]
        self, request: pb.GetPolicyRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Yields serialised messages."""
        registry = self._registry_of(request.run_id)
        other = registry.is_other(request.run_uid)
        if other and request.version:
            text = f"run {registry.run_id!r} was started again: version {request.version} belonged to the earlier run"
            raise NotFound(text, reason="OTHER_RUN", run_uid=registry.run_uid)
        published = registry.get(request.run_id, request.version)
        if request.version and request.digest not in (b"", published.blob.digest):
            text = f"policy version {request.version} of run {registry.run_id!r} has the digest"
            raise NotFound(f"{text} {published.blob.digest.hex()}, not the one asked for", reason="POLICY_DIGEST")
        have_version = 0 if other else request.have_version
        if have_version == published.blob.version:
            unchanged = pb.GetPolicyResponse(header=policy_header(published), not_modified=True)
            yield unchanged.SerializeToString()
            return
        size = len(published.blob.data)
        # A call that waits for a place must not keep an outdated version alive.
        del published
        async with self._downloads.place(size):
            published, base = registry.get(request.run_id, request.version), registry.find(have_version)
            for message in await self._messages(published, encoding_of(request.encoding), base):
                yield message

    async def WatchPolicy(  # type: ignore[override]
        self, request: pb.WatchPolicyRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Yields serialised messages; messages with a policy are the same as GetPolicy's."""
        registry = self._registry_of(request.run_id)
        encoding, version = encoding_of(request.encoding), 0
        have_version = 0 if registry.is_other(request.run_uid) else request.have_version
        base_version = have_version
        while True:
            await unless(self._stopping, registry.passed(version))
            published = registry.get("")
            version = published.blob.version
            if not request.with_policy or version == have_version:
                yield pb.WatchPolicyResponse(header=policy_header(published)).SerializeToString()
                continue
            size = len(published.blob.data)
            del published
            async with self._downloads.place(size):
                newest = registry.get("")
                for message in await self._messages(newest, encoding, registry.find(base_version)):
                    yield message
                version = base_version = newest.blob.version
                del newest

    async def _messages(self, published: Published, encoding: Encoding, base: Published | None) -> Iterable[bytes]:
        policy = await self._encodings.get(published, encoding, base)
        metrics.POLICIES.sent_bytes.labels(policy.encoding).inc(policy.size_bytes)
        return policy

    @property
    def service(self) -> Service:
        """The service that the server registers."""
        methods = ("GetPolicy", "WatchPolicy")
        return service_of(pb.DESCRIPTOR, "PolicyService", self, writes_encoded=methods)
