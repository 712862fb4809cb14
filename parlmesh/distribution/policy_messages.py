"""Encodes a policy and splits it into serialised messages once, for any number of readers."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import xxhash

from parlmesh.policies.policy_compression import LOSSY, Encoding, decode, encode
from parlmesh.types import PolicyBlob
from parlmesh.v1 import policy_service_pb2 as pb
from parlmesh.wire import field_head

from .metrics import DistributionMetrics

CHUNK_BYTES = 1 << 20
"""Most data in one message."""
# Readers of one version come close together, so only a few versions and encodings are needed at a time.
_KEPT = 8

_DATA = pb.GetPolicyResponse.DESCRIPTOR.fields_by_name["data"].number

_Key = tuple[str, str, int, Encoding, int]


@dataclass(frozen=True, slots=True)
class Published:
    """A version and when it was published."""

    blob: PolicyBlob
    publish_time: float


class EncodedPolicy:
    """Serialised GetPolicyResponse messages, ready to send. Each is made when its first reader needs it."""

    def __init__(self, encoding: Encoding, header: pb.PolicyHeader, data: bytes) -> None:
        self.encoding = encoding
        self.size_bytes = len(data)
        self._header = header
        self._data = memoryview(data)
        self._made: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        for index in range(max(1, -(-self.size_bytes // CHUNK_BYTES))):
            if index == len(self._made):
                self._made.append(self._message(index))
            yield self._made[index]

    def _message(self, index: int) -> bytes:
        chunk = self._data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
        head = pb.GetPolicyResponse(header=self._header if index == 0 else None).SerializeToString()
        return b"".join((head, field_head(_DATA, len(chunk)), chunk))


class PolicyEncodings:
    """Used on the event loop; slow work runs in threads."""

    def __init__(self, metrics: DistributionMetrics, clock: Callable[[], float] = time.perf_counter) -> None:
        self._metrics = metrics
        self._clock = clock
        self._kept: OrderedDict[_Key, asyncio.Future[EncodedPolicy]] = OrderedDict()

    async def get(self, published: Published, encoding: Encoding, base: Published | None) -> EncodedPolicy:
        """The policy in the requested encoding, or as zstd if a delta has no base of the same size."""
        blob = published.blob
        if encoding == "delta" and (base is None or len(base.blob.data) != len(blob.data)):
            encoding = "zstd"
        base = base if encoding == "delta" else None
        key = (blob.run_id, blob.run_uid, blob.version, encoding, 0 if base is None else base.blob.version)
        work = self._kept.get(key)
        if work is None:
            work = self._kept[key] = self._start(published, encoding, base)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        try:
            # The work is for all readers, so it continues when this one leaves.
            return await asyncio.shield(work)
        except Exception:
            self._kept.pop(key, None)
            raise

    def _start(
        self, published: Published, encoding: Encoding, base: Published | None
    ) -> "asyncio.Future[EncodedPolicy]":
        loop = asyncio.get_running_loop()
        if encoding == "safetensors":  # nothing to do
            done = loop.create_future()
            done.set_result(self._encoded(published, encoding, base))
            return done
        return loop.run_in_executor(None, self._encoded, published, encoding, base)

    def _encoded(self, published: Published, encoding: Encoding, base: Published | None) -> EncodedPolicy:
        started, blob = self._clock(), published.blob
        data = arrives = blob.data
        if encoding != "safetensors":
            data = encode(encoding, data, b"" if base is None else base.blob.data)
        header = policy_header(published)
        header.encoding = pb.PolicyEncoding.Value(f"POLICY_ENCODING_{encoding.upper()}")
        header.encoded_bytes = len(data)
        if base is not None:
            header.base_version = base.blob.version
        if encoding in LOSSY:
            arrives = decode(encoding, data, len(blob.data))
            header.source_digest = blob.digest
            header.digest, header.size_bytes = hashlib.sha256(arrives).digest(), len(arrives)
        header.checksum = xxhash.xxh3_128_digest(arrives)
        self._metrics.encode_seconds.labels(encoding).observe(self._clock() - started)
        self._metrics.encoding_ratio.labels(encoding).set(len(blob.data) / max(1, len(data)))
        return EncodedPolicy(encoding, header, data)


def policy_header(published: Published) -> pb.PolicyHeader:
    """The header of a version before encoding."""
    blob = published.blob
    header = pb.PolicyHeader(
        run_id=blob.run_id,
        version=blob.version,
        digest=blob.digest,
        size_bytes=len(blob.data),
        encoding=pb.POLICY_ENCODING_SAFETENSORS,
        run_uid=blob.run_uid,
    )
    header.publish_time.FromNanoseconds(round(published.publish_time * 1e9))
    return header
