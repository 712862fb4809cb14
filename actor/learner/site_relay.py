"""The site's relay as an actor uses it: policies by the digest that the learner announced, while the relay answers."""

import asyncio
import random
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc.aio

from parlmesh.distribution.policy_download import CORRUPT, Base, FetchedPolicy, fetch_policy
from parlmesh.errors import FleetError, NotFound, Unavailable
from parlmesh.rpc import Backoff, error_from_rpc
from parlmesh.telemetry import get_logger
from parlmesh.v1.policy_service_pb2 import GetPolicyRequest, PolicyEncoding, PolicyHeader

from ..config import LimitsConfig
from ..metrics import ActorMetrics

if TYPE_CHECKING:
    from parlmesh.policies.policy_compression import Encoding
    from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceAsyncStub

log = get_logger("parlmesh.actor")

_CHECK = "/grpc.health.v1.Health/Check"
# HealthCheckResponse{status: SERVING}, so that actors do not need the package that defines it.
_SERVING = b"\x08\x01"
_CHECK_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 0.5


class Relay:
    """A context manager that owns the checks of a relay that did not answer."""

    def __init__(
        self,
        stub: "PolicyServiceAsyncStub",
        channel: grpc.aio.Channel,
        *,
        limits: LimitsConfig,
        metrics: ActorMetrics,
        rng: random.Random,
    ) -> None:
        self._stub = stub
        self._check: Any = channel.unary_unary(_CHECK)
        self._limits = limits
        self._metrics = metrics
        self._rng = rng
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Relay":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    @property
    def answers(self) -> bool:
        """False after a failure until the relay reports that it serves."""
        return self._looking is None

    async def fetch(self, announced: PolicyHeader, encoding: "Encoding", base: Base | None) -> FetchedPolicy | None:
        """The version that the learner announced; None when the learner must be asked for it."""
        if not self.answers:
            return None
        if encoding == "delta" and (base is None or base.version >= announced.version):
            # There is no older version to apply a delta to.
            encoding, base = "zstd", None
        request = GetPolicyRequest(
            run_id=announced.run_id,
            version=announced.version,
            run_uid=announced.run_uid,
            digest=announced.digest,
            encoding=PolicyEncoding.Value(f"POLICY_ENCODING_{encoding.upper()}"),
            have_version=0 if base is None else base.version,
        )
        try:
            fetched = await fetch_policy(
                self._stub,
                request,
                limit_bytes=self._limits.policy_bytes,
                timeout_seconds=self._limits.policy_seconds,
                stall_seconds=self._limits.relay_seconds,
                base=base,
            )
            if fetched is None or fetched.version != announced.version:
                raise Unavailable(f"the relay did not send version {announced.version}", reason=CORRUPT)
        except grpc.aio.AioRpcError as error:
            self._leave(error_from_rpc(error))
        except FleetError as error:
            self._leave(error)
        else:
            self._metrics.relay_fetches.labels("fetched").inc()
            # Its bytes were checked; what it says about them was not.
            return replace(fetched, digest=announced.digest, run_uid=announced.run_uid)
        return None

    def _leave(self, error: FleetError) -> None:
        self._metrics.relay_fetches.labels("corrupt" if error.reason == CORRUPT else "failed").inc()
        if isinstance(error, NotFound) or self._looking is not None:
            # The learner no longer has it, which is not the relay's fault.
            return
        log.warning("relay_left", reason=error.reason, message=error.message)
        self._metrics.relay_left.set(1)
        self._looking = asyncio.create_task(self._look(), name="looks at the relay")

    async def _look(self) -> None:
        backoff = Backoff(first=_FIRST_PAUSE_SECONDS, limit=self._limits.relay_retry_seconds, rng=self._rng)
        while True:
            await asyncio.sleep(backoff.next())
            try:
                if await self._check(b"", timeout=_CHECK_SECONDS) == _SERVING:
                    break
            except grpc.aio.AioRpcError:
                continue
        log.info("relay_taken")
        self._metrics.relay_left.set(0)
        self._looking = None
