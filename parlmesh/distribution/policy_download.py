"""Downloads a policy in chunks, and checks its size and digest before use.

The server that announces a version is believed about its digest, so its quick checksum proves as much as the digest.
Bytes from any other server, such as a relay, must have the digest that was announced.
"""

import asyncio
import hashlib
import io
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc.aio
from google.protobuf.message import DecodeError

from parlmesh.digests import Hasher, fast_hasher
from parlmesh.errors import FailedPrecondition, InvalidInput, ResourceExhausted, Unavailable
from parlmesh.policies.policy_compression import Encoding, decode
from parlmesh.v1.policy_service_pb2 import (
    DESCRIPTOR,
    GetPolicyRequest,
    GetPolicyResponse,
    PolicyHeader,
    WatchPolicyRequest,
)
from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceStub
from parlmesh.wire import take_out

from .encoding_numbers import ENCODINGS

if TYPE_CHECKING:
    from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceAsyncStub

CORRUPT = "POLICY_CORRUPT"

_DATA = GetPolicyResponse.DESCRIPTOR.fields_by_name["data"].number
_SERVICE = DESCRIPTOR.services_by_name["PolicyService"]
# Larger policies are decoded in a thread, so that heartbeats continue.
_DECODE_INLINE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class FetchedPolicy:
    """A complete, decoded policy."""

    version: int
    digest: bytes
    """Digest as WatchPolicy announces it."""
    data: bytes
    received_bytes: int
    decode_seconds: float = 0.0
    run_uid: str = ""


@dataclass(frozen=True, slots=True)
class Base:
    """The policy that a delta is applied to."""

    version: int
    data: bytes


def policy_stub(channel: grpc.aio.Channel) -> "PolicyServiceAsyncStub":
    """A stub that returns raw bytes, so that chunks are not copied out of messages."""
    stub: Any = PolicyServiceStub(channel)
    for name, request in (("GetPolicy", GetPolicyRequest), ("WatchPolicy", WatchPolicyRequest)):
        path = f"/{_SERVICE.full_name}/{name}"
        setattr(stub, name, channel.unary_stream(path, request_serializer=request.SerializeToString))
    typed: PolicyServiceAsyncStub = stub
    return typed


class PolicyDownload:
    """A policy that arrives in chunks, checked on the way."""

    def __init__(self, limit_bytes: int, base: Base | None = None, *, announced_elsewhere: bool = False) -> None:
        self._limit = limit_bytes
        self._base = base
        self._announced_elsewhere = announced_elsewhere
        # Gives its bytes away without another copy, and lets go of each chunk's memory.
        self._chunks = io.BytesIO()
        self._received = 0
        self._hasher: Hasher = hashlib.sha256()
        self.header: PolicyHeader | None = None
        self.not_modified = False

    @property
    def begun(self) -> bool:
        """Whether the first message has arrived."""
        return self.header is not None

    @property
    def sent(self) -> bool:
        """Whether the weights follow; a watch may only announce a version."""
        return self.header is not None and (self.header.encoded_bytes > 0 or self._received > 0)

    @property
    def announced_digest(self) -> bytes:
        """The digest of the version as the learner holds it."""
        assert self.header is not None
        if self._announced_elsewhere:
            # The one that was announced, which the bytes are checked against.
            return self.header.digest
        return self.header.source_digest or self.header.digest

    @property
    def whole(self) -> bool:
        """Whether all announced bytes have arrived."""
        return self.header is not None and self._received == self._announced

    def add(self, message: bytes) -> None:
        """Takes a serialised GetPolicyResponse or WatchPolicyResponse."""
        try:
            rest, data = take_out(message, _DATA)
            if self.header is None:
                response = GetPolicyResponse.FromString(rest)
                self.header, self.not_modified = response.header, response.not_modified
                _check_header(self.header, self._limit, sent=not self.not_modified)
                self._hasher = self._new_hasher()
        except (InvalidInput, DecodeError) as error:
            raise Unavailable(f"a response cannot be read: {error}", reason=CORRUPT) from error
        for chunk in data:
            self._received += len(chunk)
            if self._received > self._announced:
                raise _corrupt(self.header, f"more than the announced {self._announced} bytes arrived")
            # Hashed while the next chunk is in flight.
            self._hasher.update(chunk)
            self._chunks.write(chunk)

    async def policy(self) -> FetchedPolicy:
        """The complete policy; raises Unavailable with reason CORRUPT if it arrived damaged."""
        header = self.header
        assert header is not None
        if not self.whole:
            raise _corrupt(header, f"only {self._received} of {self._announced} bytes arrived")
        encoding, blob = ENCODINGS[header.encoding], self._chunks.getvalue()
        if encoding == "safetensors":
            self._check(self._hasher)
            return FetchedPolicy(header.version, header.digest, blob, self._received, run_uid=header.run_uid)
        started = time.perf_counter()
        if self._received <= _DECODE_INLINE_BYTES:
            blob = self._decoded(encoding, blob)
        else:
            blob = await asyncio.to_thread(self._decoded, encoding, blob)
        seconds = time.perf_counter() - started
        return FetchedPolicy(header.version, self.announced_digest, blob, self._received, seconds, header.run_uid)

    @property
    def _announced(self) -> int:
        assert self.header is not None
        # A learner that does not encode may leave encoded_bytes unset.
        return self.header.encoded_bytes or self.header.size_bytes

    def _decoded(self, encoding: Encoding, data: bytes) -> bytes:
        header, base = self.header, self._base
        assert header is not None
        if encoding == "delta" and (base is None or base.version != header.base_version):
            have = "none" if base is None else str(base.version)
            raise _corrupt(header, f"it is a delta to version {header.base_version}, but the version here is {have}")
        try:
            blob = decode(encoding, data, header.size_bytes, b"" if base is None else base.data)
        except InvalidInput as error:
            raise _corrupt(header, error.message) from error
        hasher = self._new_hasher()
        hasher.update(memoryview(blob))
        self._check(hasher)
        return blob

    @property
    def _quick(self) -> bool:
        """Whether the checksum is enough."""
        return self.header is not None and bool(self.header.checksum) and not self._announced_elsewhere

    def _new_hasher(self) -> Hasher:
        return fast_hasher() if self._quick else hashlib.sha256()

    def _check(self, hasher: Hasher) -> None:
        header = self.header
        assert header is not None
        if hasher.digest() != (header.checksum if self._quick else header.digest):
            raise _corrupt(header, f"its {'checksum' if self._quick else 'digest'} does not match")


async def fetch_policy(
    stub: "PolicyServiceAsyncStub",
    request: GetPolicyRequest,
    *,
    limit_bytes: int,
    timeout_seconds: float,
    stall_seconds: float | None = None,
    base: Base | None = None,
) -> FetchedPolicy | None:
    """The policy, or None if the caller already has it. Raises Unavailable with reason CORRUPT if it arrives damaged or
    does not have the requested digest. `stall_seconds`: the longest wait for the next chunk."""
    download = PolicyDownload(limit_bytes, base, announced_elsewhere=bool(request.digest))
    call: Any = stub.GetPolicy(request, timeout=timeout_seconds)
    try:
        while True:
            async with asyncio.timeout(stall_seconds):
                message = await call.read()
            if message is grpc.aio.EOF:
                break
            download.add(message)
            if download.not_modified:
                return None
    except TimeoutError:
        raise Unavailable(f"no chunk of the policy arrived for {stall_seconds:g} seconds", reason="STALLED") from None
    finally:
        call.cancel()
    if not download.begun:
        raise Unavailable(f"the server sent no policy of run {request.run_id!r}", reason=CORRUPT)
    assert download.header is not None
    # Checked against the weights themselves, so the server need not be trusted.
    if request.digest not in (b"", download.header.digest):
        raise _corrupt(download.header, "its digest is not the one asked for")
    return await download.policy()


async def announced(
    stub: "PolicyServiceAsyncStub", request: GetPolicyRequest, *, timeout_seconds: float
) -> PolicyHeader:
    """The learner's header of one version, without the weights."""
    asked = GetPolicyRequest(
        run_id=request.run_id, version=request.version, have_version=request.version, run_uid=request.run_uid
    )
    download = PolicyDownload(1 << 62)
    call: Any = stub.GetPolicy(asked, timeout=timeout_seconds)
    try:
        message = await call.read()
        if message is not grpc.aio.EOF:
            download.add(message)
    finally:
        call.cancel()
    if download.header is None or not download.not_modified:
        raise Unavailable(f"the learner did not describe version {request.version} of run {request.run_id!r}")
    return download.header


def _check_header(header: PolicyHeader, limit_bytes: int, *, sent: bool) -> None:
    size = max(header.size_bytes, header.encoded_bytes)
    if sent and size > limit_bytes:
        raise ResourceExhausted(
            f"policy version {header.version} has {size} bytes; the limit is {limit_bytes} (limits.policy_bytes)"
        )
    if header.encoding not in ENCODINGS:
        known = ", ".join(dict.fromkeys(ENCODINGS.values()))
        raise FailedPrecondition(
            f"policy version {header.version} has encoding {header.encoding}; supported are {known}"
        )


def _corrupt(header: PolicyHeader, why: str) -> Unavailable:
    text = f"policy version {header.version} of run {header.run_id!r} is damaged: {why}"
    return Unavailable(text, reason=CORRUPT)
