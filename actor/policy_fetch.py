"""One policy from the learner, in chunks: size and digest are checked before anyone uses it."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parlmesh.errors import FailedPrecondition, ResourceExhausted, Unavailable
from parlmesh.v1.policy_service_pb2 import GetPolicyRequest, PolicyEncoding, PolicyHeader

if TYPE_CHECKING:
    from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceAsyncStub

CORRUPT = "POLICY_CORRUPT"

_READABLE = (PolicyEncoding.POLICY_ENCODING_UNSPECIFIED, PolicyEncoding.POLICY_ENCODING_SAFETENSORS)


@dataclass(frozen=True, slots=True)
class FetchedPolicy:
    """A whole policy as the learner serialised it."""

    version: int
    digest: bytes
    data: bytes


async def fetch_policy(
    stub: "PolicyServiceAsyncStub", request: GetPolicyRequest, *, limit_bytes: int, timeout_seconds: float
) -> FetchedPolicy | None:
    """The policy, or None when the caller's version is the newest. Unavailable CORRUPT when it arrives damaged."""
    header: PolicyHeader | None = None
    chunks: list[bytes] = []
    received = 0
    call = stub.GetPolicy(request, timeout=timeout_seconds)
    try:
        async for response in call:
            if header is None:
                if response.not_modified:
                    return None
                header = response.header
                _check_header(header, limit_bytes)
            received += len(response.data)
            if received > header.size_bytes:
                raise _corrupt(header, f"more than the promised {header.size_bytes} bytes came")
            chunks.append(response.data)
    finally:
        call.cancel()
    if header is None:
        raise Unavailable(f"the learner sent no policy of run {request.run_id!r}", reason=CORRUPT)
    data = b"".join(chunks)
    if len(data) != header.size_bytes:
        raise _corrupt(header, f"{len(data)} of {header.size_bytes} bytes came")
    if hashlib.sha256(data).digest() != header.digest:
        raise _corrupt(header, "its digest does not match")
    return FetchedPolicy(header.version, header.digest, data)


def _check_header(header: PolicyHeader, limit_bytes: int) -> None:
    if header.size_bytes > limit_bytes:
        raise ResourceExhausted(
            f"policy version {header.version} has {header.size_bytes} bytes;"
            f" the limit is {limit_bytes} (limits.policy_bytes)"
        )
    if header.encoding not in _READABLE:
        name = PolicyEncoding.Name(header.encoding)
        raise FailedPrecondition(f"policy version {header.version} is packed as {name}; this actor reads SAFETENSORS")


def _corrupt(header: PolicyHeader, why: str) -> Unavailable:
    text = f"policy version {header.version} of run {header.run_id!r} is damaged: {why}"
    return Unavailable(text, reason=CORRUPT)
