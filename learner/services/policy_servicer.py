"""PolicyService over gRPC: decode, call, encode."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import grpc.aio

from parlmesh.errors import InvalidInput, NotFound
from parlmesh.policies.encodings import Encoding
from parlmesh.rpc.server import Service
from parlmesh.rpc.server.service_registration import service_of
from parlmesh.v1 import policy_service_pb2 as pb
from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceServicer

from .. import metrics
from ..policies.policy_messages import PolicyEncodings, policy_header
from ..policies.registry import PolicyRegistry, Published
from .stream_limits import unless

Context = grpc.aio.ServicerContext[Any, Any]

_ENCODINGS: Mapping[int, Encoding] = {
    pb.POLICY_ENCODING_UNSPECIFIED: "safetensors",
    pb.POLICY_ENCODING_SAFETENSORS: "safetensors",
    pb.POLICY_ENCODING_ZSTD: "zstd",
    pb.POLICY_ENCODING_BFLOAT16: "bfloat16",
    pb.POLICY_ENCODING_DELTA: "delta",
}


class PolicyServicer(PolicyServiceServicer):
    """PolicyService."""

    def __init__(self, registry_of: Callable[[str], PolicyRegistry], stopping: asyncio.Event) -> None:
        self._registry_of = registry_of
        self._stopping = stopping
        self._encodings = PolicyEncodings()

    async def GetPolicy(  # type: ignore[override]
        self, request: pb.GetPolicyRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Messages that are serialised already."""
        registry = self._registry_of(request.run_id)
        other = registry.is_other(request.run_uid)
        if other and request.version:
            text = f"run {registry.run_id!r} was started again: version {request.version} belonged to the earlier run"
            raise NotFound(text, reason="OTHER_RUN", run_uid=registry.run_uid)
        published = registry.get(request.run_id, request.version)
        have_version = 0 if other else request.have_version
        if have_version == published.blob.version:
            unchanged = pb.GetPolicyResponse(header=policy_header(published), not_modified=True)
            yield unchanged.SerializeToString()
            return
        base = registry.find(have_version)
        for message in await self._messages(published, _encoding(request.encoding), base):
            yield message

    async def WatchPolicy(  # type: ignore[override]
        self, request: pb.WatchPolicyRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Messages that are serialised already; those with a policy are the ones that GetPolicy sends."""
        registry = self._registry_of(request.run_id)
        encoding, version = _encoding(request.encoding), 0
        have_version = 0 if registry.is_other(request.run_uid) else request.have_version
        base = registry.find(have_version)
        while True:
            published = await unless(self._stopping, registry.newer_than(version))
            version = published.blob.version
            if not request.with_policy or version == have_version:
                yield pb.WatchPolicyResponse(header=policy_header(published)).SerializeToString()
                continue
            for message in await self._messages(published, encoding, base):
                yield message
            base = published

    async def _messages(self, published: Published, encoding: Encoding, base: Published | None) -> Iterable[bytes]:
        policy = await self._encodings.get(published, encoding, base)
        metrics.POLICY_SENT_BYTES.labels(policy.encoding).inc(policy.size_bytes)
        return policy

    @property
    def service(self) -> Service:
        """To be served."""
        methods = ("GetPolicy", "WatchPolicy")
        return service_of(pb.DESCRIPTOR, "PolicyService", self, writes_encoded=methods)


def _encoding(wanted: pb.PolicyEncoding.ValueType) -> Encoding:
    if wanted not in _ENCODINGS:
        known = ", ".join(pb.PolicyEncoding.keys())
        raise InvalidInput(f"encoding {wanted} is unknown; there are {known}", reason="POLICY_ENCODING")
    return _ENCODINGS[wanted]
