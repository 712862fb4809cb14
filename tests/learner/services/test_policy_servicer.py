import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from learner.policies.registry import PolicyRegistry
from learner.services.policy_servicer import PolicyServicer
from parlmesh.rpc.caller_identity import set_caller
from parlmesh.rpc.server import downloads
from parlmesh.security import Identity, Role
from parlmesh.v1 import policy_service_pb2 as pb

SIZE = 1 << 20


@pytest.mark.parametrize("watching", [False, True], ids=["GetPolicy", "WatchPolicy"])
async def test_policies_that_nobody_reads_are_encoded_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, watching: bool
) -> None:
    monkeypatch.setattr(downloads, "MOST_BYTES", 10 * SIZE)
    registry = PolicyRegistry("run")
    for version in range(1, 21):
        registry.publish(version, os.urandom(SIZE))
    servicer = PolicyServicer(lambda _: registry, asyncio.Event())
    encoded: list[int] = []
    encode = servicer._encodings.get

    async def counted(published: Any, encoding: Any, base: Any) -> Any:
        encoded.append(0 if base is None else base.blob.version)
        return await encode(published, encoding, base)

    monkeypatch.setattr(servicer._encodings, "get", counted)

    async def unread(have_version: int) -> bytes:
        set_caller(Identity("node-1", Role.ACTOR))
        answers: AsyncGenerator[bytes]
        if watching:
            request = pb.WatchPolicyRequest(
                have_version=have_version, with_policy=True, encoding=pb.POLICY_ENCODING_DELTA
            )
            answers = servicer.WatchPolicy(request, None)  # type: ignore[arg-type,assignment]
        else:
            wanted = pb.GetPolicyRequest(have_version=have_version, encoding=pb.POLICY_ENCODING_DELTA)
            answers = servicer.GetPolicy(wanted, None)  # type: ignore[arg-type,assignment]
        first = await anext(answers)
        arrived.set()
        await read.wait()
        await answers.aclose()
        return first

    arrived, read = asyncio.Event(), asyncio.Event()
    readers = [asyncio.create_task(unread(have_version)) for have_version in range(1, 20)]
    await asyncio.wait_for(arrived.wait(), 30)
    # Each has 1 MiB and 2 more for itself.
    assert len(encoded) <= 3
    read.set()
    await asyncio.wait_for(asyncio.gather(*readers), 60)
    assert sorted(encoded) == list(range(1, 20))
