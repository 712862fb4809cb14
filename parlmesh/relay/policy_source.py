"""Policies for a site's readers: from the shelf, or fetched from the learner once for all waiting readers."""

import asyncio
import time
from typing import TYPE_CHECKING

import grpc.aio

from parlmesh.distribution.policy_download import Base, fetch_policy
from parlmesh.distribution.policy_messages import Published
from parlmesh.errors import FleetError, InvalidInput, ResourceExhausted, Unavailable
from parlmesh.rpc import error_from_rpc
from parlmesh.telemetry import get_logger
from parlmesh.types import PolicyBlob
from parlmesh.v1.policy_service_pb2 import GetPolicyRequest, PolicyEncoding

from . import metrics
from .config import RelayConfig
from .held_policies import Shelf

if TYPE_CHECKING:
    from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceAsyncStub

log = get_logger("parlmesh.relay")

_DIGEST_BYTES = 32


class Source:
    """Used on the event loop."""

    def __init__(self, stub: "PolicyServiceAsyncStub", config: RelayConfig) -> None:
        self._stub = stub
        self._limits = config.limits
        self._delta = config.policy_encoding == "delta"
        self._encoding = PolicyEncoding.Value(f"POLICY_ENCODING_{config.policy_encoding.upper()}")
        self._shelf = Shelf(config.limits.held_bytes)
        self._fetches: dict[bytes, asyncio.Task[Published]] = {}
        self._turns = asyncio.Semaphore(config.limits.fetches)

    async def get(self, request: GetPolicyRequest) -> Published:
        """The version that a reader requests by digest."""
        if len(request.digest) != _DIGEST_BYTES or not request.version:
            text = f"a request to a relay needs a version and its digest of {_DIGEST_BYTES} bytes; got version"
            raise InvalidInput(f"{text} {request.version} and {len(request.digest)} bytes", reason="POLICY_DIGEST")
        held = self._shelf.find(request.digest)
        if held is not None:
            metrics.REQUESTS.labels("held").inc()
            return _named(held, request)
        try:
            # Shared by all waiting readers: it continues when this one leaves.
            found = await asyncio.shield(self._fetching(request))
        except FleetError:
            metrics.REQUESTS.labels("failed").inc()
            raise
        metrics.REQUESTS.labels("fetched").inc()
        return _named(found, request)

    def base(self, request: GetPolicyRequest) -> Published | None:
        """The version that a delta for this reader may be based on."""
        return self._shelf.version(request.run_id, request.run_uid, request.have_version)

    async def close(self) -> None:
        """Cancels all fetches."""
        fetches = list(self._fetches.values())
        for fetch in fetches:
            fetch.cancel()
        if fetches:
            await asyncio.wait(fetches)

    def _fetching(self, request: GetPolicyRequest) -> "asyncio.Task[Published]":
        work = self._fetches.get(request.digest)
        if work is not None:
            return work
        if len(self._fetches) >= self._limits.waiting_fetches:
            text = f"{len(self._fetches)} policies are being fetched already (limits.waiting_fetches); ask the learner"
            raise ResourceExhausted(text, reason="TOO_MANY_FETCHES", retry_after_seconds=1.0)
        work = self._fetches[request.digest] = asyncio.create_task(self._fetch(request), name="fetches a policy")
        work.add_done_callback(lambda done: self._fetched(request.digest, done))
        return work

    def _fetched(self, digest: bytes, done: "asyncio.Task[Published]") -> None:
        del self._fetches[digest]
        # Waiting readers get the error themselves; log it in case all have left.
        error = None if done.cancelled() else done.exception()
        if error is not None:
            log.warning("fetch_failed", digest=digest.hex(), error=str(error))

    async def _fetch(self, request: GetPolicyRequest) -> Published:
        async with self._turns:
            newest = self._shelf.newest(request.run_id, request.run_uid) if self._delta else None
            base = None if newest is None else Base(newest.blob.version, newest.blob.data)
            wanted = GetPolicyRequest(
                run_id=request.run_id,
                version=request.version,
                run_uid=request.run_uid,
                digest=request.digest,
                encoding=self._encoding,
                have_version=0 if base is None or base.version == request.version else base.version,
            )
            try:
                fetched = await fetch_policy(
                    self._stub,
                    wanted,
                    limit_bytes=self._limits.policy_bytes,
                    timeout_seconds=self._limits.fetch_seconds,
                    base=base,
                )
            except grpc.aio.AioRpcError as error:
                raise error_from_rpc(error) from error
        if fetched is None:
            raise Unavailable(f"the learner did not send version {request.version} of run {request.run_id!r}")
        metrics.FETCHED_BYTES.inc(fetched.received_bytes)
        blob = PolicyBlob(request.run_id, fetched.version, fetched.digest, fetched.data, fetched.run_uid)
        published = Published(blob, time.time())
        self._shelf.put(published)
        metrics.HELD_BYTES.set(self._shelf.size_bytes)
        metrics.HELD.set(len(self._shelf))
        return published


def _named(found: Published, request: GetPolicyRequest) -> Published:
    """The weights under the reader's run and version."""
    blob = found.blob
    if (blob.run_id, blob.version, blob.run_uid) == (request.run_id, request.version, request.run_uid):
        return found
    named = PolicyBlob(request.run_id, request.version, blob.digest, blob.data, request.run_uid or blob.run_uid)
    return Published(named, found.publish_time)
