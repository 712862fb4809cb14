"""PolicyService over gRPC: decode, call, encode."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio

from parlmesh.v1 import policy_service_pb2 as pb
from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceServicer

from .registry import PolicyRegistry, Published
from .streaming import CHUNK_BYTES, unless

Context = grpc.aio.ServicerContext[Any, Any]


class PolicyServicer(PolicyServiceServicer):
    """PolicyService."""

    def __init__(self, registry_of: Callable[[str], PolicyRegistry], stopping: asyncio.Event) -> None:
        self._registry_of = registry_of
        self._stopping = stopping

    async def GetPolicy(self, request: pb.GetPolicyRequest, context: Context) -> AsyncIterator[pb.GetPolicyResponse]:
        published = self._registry_of(request.run_id).get(request.run_id, request.version)
        header, data = _header(published), published.blob.data
        if request.have_version == published.blob.version:
            yield pb.GetPolicyResponse(header=header, not_modified=True)
            return
        for start in range(0, len(data), CHUNK_BYTES):
            chunk = data[start : start + CHUNK_BYTES]
            yield pb.GetPolicyResponse(header=header if start == 0 else None, data=chunk)

    async def WatchPolicy(
        self, request: pb.WatchPolicyRequest, context: Context
    ) -> AsyncIterator[pb.WatchPolicyResponse]:
        registry, version = self._registry_of(request.run_id), 0
        while True:
            published = await unless(self._stopping, registry.newer_than(version))
            version = published.blob.version
            yield pb.WatchPolicyResponse(header=_header(published))


def _header(published: Published) -> pb.PolicyHeader:
    blob = published.blob
    header = pb.PolicyHeader(
        run_id=blob.run_id,
        version=blob.version,
        digest=blob.digest,
        size_bytes=len(blob.data),
        encoding=pb.POLICY_ENCODING_SAFETENSORS,
    )
    header.publish_time.FromNanoseconds(round(published.publish_time * 1e9))
    return header
