import asyncio
import hashlib
from typing import Any

import pytest

from parlmesh.distribution.policy_messages import Published
from parlmesh.relay.servicer import RelayServicer
from parlmesh.rpc.caller_identity import set_caller
from parlmesh.rpc.server import downloads
from parlmesh.security import Identity, Role
from parlmesh.types import PolicyBlob
from parlmesh.v1 import policy_service_pb2 as pb

SIZE = 1 << 20


class Source:
    """Has every version."""

    def __init__(self) -> None:
        self.bases = 0

    async def get(self, request: pb.GetPolicyRequest) -> Published:
        data = bytes([request.version]) * SIZE
        return Published(PolicyBlob("run", request.version, hashlib.sha256(data).digest(), data, "uid"), 0.0)

    def base(self, request: pb.GetPolicyRequest) -> None:
        self.bases += 1


async def test_policies_that_nobody_reads_are_encoded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "MOST_BYTES", 10 * SIZE)
    source: Any = Source()
    servicer = RelayServicer(source)
    arrived, read = asyncio.Event(), asyncio.Event()

    async def unread(version: int) -> None:
        set_caller(Identity("node-1", Role.ACTOR))
        answers: Any = servicer.GetPolicy(pb.GetPolicyRequest(version=version), None)  # type: ignore[arg-type]
        await anext(answers)
        arrived.set()
        await read.wait()
        await answers.aclose()

    readers = [asyncio.create_task(unread(version)) for version in range(1, 20)]
    await asyncio.wait_for(arrived.wait(), 30)
    # Each has 1 MiB, and 2 more of its own.
    assert source.bases <= 3
    read.set()
    await asyncio.wait_for(asyncio.gather(*readers), 60)
    assert source.bases == 19
