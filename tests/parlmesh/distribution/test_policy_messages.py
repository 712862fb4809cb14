import asyncio
import hashlib

import pytest
from prometheus_client import CollectorRegistry

from learner.policies.registry import PolicyRegistry
from parlmesh.digests import fast_digest
from parlmesh.distribution import policy_messages
from parlmesh.distribution.metrics import distribution_metrics
from parlmesh.distribution.policy_messages import PolicyEncodings
from parlmesh.policies import policy_compression
from parlmesh.policies.policy_compression import decode
from parlmesh.v1.policy_service_pb2 import GetPolicyResponse, PolicyEncoding

METRICS = distribution_metrics("test", CollectorRegistry())
NEW, OLD = bytes(range(256)) * 10_000, bytes(range(256)) * 9_999 + bytes(256)


@pytest.fixture
def registry():
    found = PolicyRegistry("run")
    found.publish(1, OLD)
    found.publish(2, NEW)
    return found


@pytest.fixture
def counted(monkeypatch):
    """Records every encoding that is really computed."""
    calls = []

    def encode(encoding, blob, base=b""):
        calls.append(encoding)
        return policy_compression.encode(encoding, blob, base)

    monkeypatch.setattr(policy_messages, "encode", encode)
    return calls


def parsed(policy):
    messages = [GetPolicyResponse.FromString(message) for message in policy]
    return messages[0].header, b"".join(message.data for message in messages)


@pytest.mark.parametrize("encoding", ["safetensors", "zstd", "delta"])
async def test_many_readers_cost_one_encoding_and_none_where_nothing_is_to_be_done(registry, counted, encoding):
    maker = PolicyEncodings(METRICS)
    new, old = registry.get("", 2), registry.get("", 1)
    coded = await asyncio.gather(*(maker.get(new, encoding, old) for _ in range(8)))
    assert counted == ([] if encoding == "safetensors" else [encoding])
    header, data = parsed(coded[0])
    assert decode(encoding, data, header.size_bytes, OLD) == NEW
    assert header.digest == hashlib.sha256(NEW).digest()
    assert header.checksum == fast_digest(NEW)
    assert (header.size_bytes, header.encoded_bytes) == (len(NEW), len(data))
    assert header.base_version == (1 if encoding == "delta" else 0)
    assert all(a is b for a, b in zip(coded[0], coded[7], strict=True)), "the same messages go to all"


async def test_a_delta_without_a_base_of_the_same_size_comes_whole(registry):
    registry.publish(3, b"short")
    for base in (None, registry.get("", 3)):
        header, data = parsed(await PolicyEncodings(METRICS).get(registry.get("", 2), "delta", base))
        assert header.encoding == PolicyEncoding.POLICY_ENCODING_ZSTD
        assert decode("zstd", data, header.size_bytes) == NEW


async def test_only_a_few_encodings_are_kept(registry, counted):
    maker = PolicyEncodings(METRICS)
    for version in range(3, 30):
        registry.publish(version, b"x" * version)
        await maker.get(registry.get("", version), "zstd", None)
    await maker.get(registry.get("", 29), "zstd", None)
    assert len(counted) == 27
    await maker.get(registry.get("", 3), "zstd", None)
    assert len(counted) == 28


async def test_a_reader_that_leaves_does_not_take_the_work_with_it(registry, counted):
    maker = PolicyEncodings(METRICS)
    first = asyncio.create_task(maker.get(registry.get("", 2), "zstd", None))
    await asyncio.sleep(0)
    first.cancel()
    await maker.get(registry.get("", 2), "zstd", None)
    assert counted == ["zstd"]


async def test_an_encoding_that_failed_is_tried_again(registry, monkeypatch):
    maker, broken = PolicyEncodings(METRICS), [True]

    def encode(encoding, blob, base=b""):
        if broken.pop() if broken else False:
            raise MemoryError
        return policy_compression.encode(encoding, blob, base)

    monkeypatch.setattr(policy_messages, "encode", encode)
    with pytest.raises(MemoryError):
        await maker.get(registry.get("", 2), "zstd", None)
    header, _ = parsed(await maker.get(registry.get("", 2), "zstd", None))
    assert header.version == 2
