"""The policies this process acts with: follows each run's newest version and decodes each version once."""

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc.aio

from parlmesh.distribution.policy_download import CORRUPT, Base, FetchedPolicy, PolicyDownload, announced, fetch_policy
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, FleetError, InvalidInput, NotFound, Unavailable
from parlmesh.exception_text import sentence
from parlmesh.rpc import Backoff, error_from_rpc
from parlmesh.telemetry import get_logger
from parlmesh.v1.policy_service_pb2 import GetPolicyRequest, PolicyEncoding, PolicyHeader, WatchPolicyRequest

from ..config import LimitsConfig
from ..metrics import ActorMetrics
from .site_relay import Relay

if TYPE_CHECKING:
    from parlmesh.policies import Policy
    from parlmesh.policies.policy_compression import Encoding
    from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceAsyncStub

log = get_logger("parlmesh.actor")

_VERSIONS_KEPT = 2
_RUNS_FOLLOWED = 4
# A run that was not used for this long is no longer followed once its stream breaks.
_FORGET_SECONDS = 60.0
# Larger blobs are decoded in a thread, so that heartbeats continue.
_DECODE_INLINE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class HeldPolicy:
    """One version, ready to act."""

    version: int
    digest: bytes
    policy: "Policy"
    run_uid: str = ""
    size_bytes: int = 0

    def serves(self, min_version: int, run_uid: str) -> bool:
        """Whether it is new enough, and not known to belong to another run than `run_uid`."""
        return self.version >= min_version and not _differ(run_uid, self.run_uid)


def _differ(one: str, other: str) -> bool:
    """Whether two uids are known to belong to different runs."""
    return "" not in (one, other) and one != other


@dataclass(frozen=True, slots=True)
class _Waiter:
    min_version: int
    run_uid: str
    future: "asyncio.Future[HeldPolicy]"


@dataclass(slots=True)
class _Run:
    run_id: str
    newest: HeldPolicy | None = None
    held: "OrderedDict[int, HeldPolicy]" = field(default_factory=OrderedDict)
    asked: "OrderedDict[int, HeldPolicy]" = field(default_factory=OrderedDict)
    """Versions that were requested by number, such as opponents; the last one requested is at the end."""
    waiting: "list[_Waiter]" = field(default_factory=list)
    follower: "asyncio.Task[None] | None" = None
    last_used: float = 0.0
    base: Base | None = None
    """The newest version's bytes, kept if deltas are asked for."""


class PolicyCache:
    """Used as a context manager, which owns the streams. `newest` may be called from any thread."""

    def __init__(
        self,
        stub: "PolicyServiceAsyncStub",
        decode: "Callable[[bytes], Policy]",
        *,
        limits: LimitsConfig,
        metrics: ActorMetrics,
        rng: random.Random,
        encoding: "Encoding" = "safetensors",
        relay: Relay | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._encoding = encoding
        self._wanted = PolicyEncoding.Value(f"POLICY_ENCODING_{encoding.upper()}")
        # A version fetched by itself has no base for a delta.
        self._plain = PolicyEncoding.POLICY_ENCODING_ZSTD if encoding == "delta" else self._wanted
        self._stub = stub
        self._relay = relay
        self._decode = decode
        self._limits = limits
        self._metrics = metrics
        self._rng = rng
        self._clock = clock
        self._runs: dict[str, _Run] = {}
        self._group = asyncio.TaskGroup()
        self.newest_version = 0
        """Newest version of the run that changed last; 0 = none."""

    async def __aenter__(self) -> "PolicyCache":
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.reset()
        await self._group.__aexit__(kind, error, traceback)

    def newest(self, run_id: str) -> HeldPolicy | None:
        """The newest version that has arrived; None when the run is not followed yet or has none."""
        run = self._runs.get(run_id)
        if run is None:
            return None
        run.last_used = self._clock()
        return run.newest

    async def get(self, run_id: str, min_version: int, seconds: float, run_uid: str = "") -> HeldPolicy:
        """The newest version once it is at least `min_version`; DeadlineExceeded when that takes too long."""
        run = self._followed(run_id)
        if run.newest is not None and run.newest.serves(min_version, run_uid):
            return run.newest
        waiter = _Waiter(min_version, run_uid, asyncio.get_running_loop().create_future())
        run.waiting.append(waiter)
        try:
            async with asyncio.timeout(seconds):
                return await waiter.future
        except TimeoutError:
            have = run.newest.version if run.newest else 0
            text = f"policy version {min_version} of run {run_id!r} did not come within {seconds:g} seconds"
            raise DeadlineExceeded(f"{text}; the newest here is {have}") from None
        finally:
            if waiter in run.waiting:
                run.waiting.remove(waiter)

    async def get_exact(self, run_id: str, version: int, seconds: float, run_uid: str = "") -> HeldPolicy:
        """Exactly this version; NotFound when the learner no longer keeps it."""
        run = self._runs.get(run_id)
        held = (run.held.get(version) or run.asked.get(version)) if run is not None else None
        if run is not None and held is not None and not _differ(run_uid, held.run_uid):
            if version in run.asked:
                run.asked.move_to_end(version)
            return held
        request = GetPolicyRequest(run_id=run_id, version=version, encoding=self._plain, run_uid=run_uid)
        fetched = await self._relayed_version(request, seconds) or await self._fetch(request, seconds)
        if fetched is None or fetched.version != version:
            raise Unavailable(f"asked for policy version {version} of run {run_id!r} and got another")
        policy = await self._decoded(run_id, fetched)
        run = self._runs.get(run_id)
        if run is not None and (run.newest is None or not _differ(run.newest.run_uid, policy.run_uid)):
            self._keep_asked(run, policy)
        return policy

    def reset(self) -> None:
        """Forgets every policy and follows no run; waiting callers get an error."""
        for run in list(self._runs.values()):
            self._forget(run)
        self.newest_version = 0

    def _followed(self, run_id: str) -> _Run:
        run = self._runs.get(run_id)
        if run is None:
            idle = sorted((run for run in self._runs.values() if not run.waiting), key=lambda run: run.last_used)
            for oldest in idle[: max(0, len(self._runs) + 1 - _RUNS_FOLLOWED)]:
                self._forget(oldest)
            run = self._runs[run_id] = _Run(run_id)
            run.follower = self._group.create_task(self._follow(run))
        run.last_used = self._clock()
        return run

    def _forget(self, run: _Run) -> None:
        self._runs.pop(run.run_id, None)
        if run.follower is not None:
            run.follower.cancel()
        self._fail(run, Unavailable(f"the policies of run {run.run_id!r} were dropped"))

    async def _follow(self, run: _Run) -> None:
        backoff, away = Backoff(limit=self._limits.reconnect_seconds, rng=self._rng), False
        while True:
            watch, first = self._watch(run), True
            try:
                while (download := await self._next(watch, run.base)) is not None:
                    await self._take(run, download, first=first)
                    backoff.reset()
                    away = first = False
                error: FleetError = Unavailable("the learner ended the watch")
            except grpc.aio.AioRpcError as rpc_error:
                error = error_from_rpc(rpc_error)
            except FleetError as fleet_error:
                error = fleet_error
            except Exception as defect:
                # This ends the watch, not the actor: the next watch may work.
                log.exception("policy_watch_failed", defect, run_id=run.run_id)
                error = Unavailable(f"a policy cannot be taken in: {sentence(defect)}")
            finally:
                watch.cancel()
            if isinstance(error, NotFound | InvalidInput):
                self._fail(run, error)
            if not run.waiting and self._clock() - run.last_used > _FORGET_SECONDS:
                self._forget(run)
                return
            pause = backoff.next()
            self._metrics.reconnects.labels("learner").inc()
            # Logged once, so that a learner that stays unreachable does not fill the log.
            (log.debug if away else log.warning)(
                "policy_watch_broken",
                run_id=run.run_id,
                reason=error.reason,
                message=error.message,
                retry_seconds=round(pause, 3),
            )
            away = True
            await asyncio.sleep(pause)

    def _watch(self, run: _Run) -> Any:
        """Opens a watch. It has no deadline, because it lasts as long as the run is followed."""
        have, uid = (run.newest.version, run.newest.run_uid) if run.newest is not None else (0, "")
        request = WatchPolicyRequest(
            run_id=run.run_id, with_policy=self._relay is None, have_version=have, encoding=self._wanted, run_uid=uid
        )
        return self._stub.WatchPolicy(request)

    async def _next(self, watch: Any, base: Base | None) -> PolicyDownload | None:
        """The next version, whole or only announced; None when the learner ended the watch."""
        download = PolicyDownload(self._limits.policy_bytes, base)
        message = await watch.read()
        if message is grpc.aio.EOF:
            return None
        download.add(message)
        try:
            async with asyncio.timeout(self._limits.policy_seconds):
                while download.sent and not download.whole:
                    message = await watch.read()
                    if message is grpc.aio.EOF:
                        return None
                    download.add(message)
        except TimeoutError:
            raise Unavailable(f"a policy did not come within {self._limits.policy_seconds:g} seconds") from None
        return download

    async def _take(self, run: _Run, download: PolicyDownload, *, first: bool) -> None:
        header = download.header
        assert header is not None
        if run.newest is not None and self._is_anew(run.newest, download, first=first):
            self._begin_anew(run, header)
        newest = run.newest
        if newest is not None and header.version <= newest.version:
            if header.version < newest.version or download.announced_digest != newest.digest:
                self._refuse(run, header.version)
            return
        if download.sent:
            fetched: FetchedPolicy | None = await self._counted(download.policy())
        else:
            fetched = await self._relayed(header, run.base)
            if fetched is None:
                have = newest.version if newest else 0
                uid = newest.run_uid if newest else ""
                request = GetPolicyRequest(run_id=run.run_id, have_version=have, encoding=self._plain, run_uid=uid)
                fetched = await self._fetch(request, self._limits.policy_seconds)
        if fetched is None:
            return
        if newest is not None and fetched.version <= newest.version:
            self._refuse(run, fetched.version)
            return
        run.newest = await self._decoded(run.run_id, fetched)
        self._keep(run, run.newest)
        if self._encoding == "delta":
            run.base = Base(fetched.version, fetched.data)
        self.newest_version = run.newest.version
        self._metrics.policy_version.set(run.newest.version)
        for waiter in list(run.waiting):
            if run.newest.serves(waiter.min_version, waiter.run_uid) and not waiter.future.done():
                waiter.future.set_result(run.newest)

    def _is_anew(self, newest: HeldPolicy, download: PolicyDownload, *, first: bool) -> bool:
        """Whether the held policies are of a run that is gone. Versions only grow within a watch; the first message of
        a new watch is the truth about its run, even if the learner went back to an older state."""
        header = download.header
        assert header is not None
        if _differ(header.run_uid, newest.run_uid):
            return True
        same = header.version == newest.version and download.announced_digest == newest.digest
        return first and header.version <= newest.version and not same

    def _begin_anew(self, run: _Run, header: PolicyHeader) -> None:
        """Forgets the held policies of a run that no longer exists."""
        have = run.newest
        assert have is not None
        log.warning(
            "run_began_anew",
            run_id=run.run_id,
            run_uid=header.run_uid,
            version=header.version,
            had_uid=have.run_uid,
            had_version=have.version,
        )
        run.newest, run.base = None, None
        run.held.clear()
        run.asked.clear()
        gone = Unavailable(f"run {run.run_id!r} was started again", reason="OTHER_RUN")
        for waiter in run.waiting:
            if _differ(waiter.run_uid, header.run_uid) and not waiter.future.done():
                waiter.future.set_exception(gone)

    def _refuse(self, run: _Run, version: int) -> None:
        """Counts and logs a refused version: within a watch, versions only grow."""
        have = run.newest.version if run.newest else 0
        self._metrics.policy_fetches.labels("refused").inc()
        log.error("policy_refused", run_id=run.run_id, version=version, have_version=have)

    async def _relayed(self, header: PolicyHeader, base: Base | None) -> FetchedPolicy | None:
        """A version from the relay; None if there is no relay, or if the learner must be asked."""
        fetched = None if self._relay is None else await self._relay.fetch(header, self._encoding, base)
        if fetched is not None:
            self._account(fetched)
        return fetched

    async def _relayed_version(self, request: GetPolicyRequest, seconds: float) -> FetchedPolicy | None:
        """A version that is requested by number, from the relay: only the learner can name its digest."""
        if self._relay is None or not self._relay.answers:
            return None
        try:
            header = await announced(self._stub, request, timeout_seconds=seconds)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        return await self._relayed(header, None)

    async def _fetch(self, request: GetPolicyRequest, seconds: float) -> FetchedPolicy | None:
        return await self._counted(
            fetch_policy(self._stub, request, limit_bytes=self._limits.policy_bytes, timeout_seconds=seconds)
        )

    async def _counted(self, work: Awaitable[FetchedPolicy | None]) -> FetchedPolicy | None:
        fetches = self._metrics.policy_fetches
        try:
            fetched = await work
        except grpc.aio.AioRpcError as error:
            fetches.labels("failed").inc()
            raise error_from_rpc(error) from error
        except FleetError as error:
            fetches.labels("corrupt" if error.reason == CORRUPT else "refused").inc()
            raise
        if fetched is None:
            fetches.labels("not_modified").inc()
        else:
            self._account(fetched)
        return fetched

    def _account(self, fetched: FetchedPolicy) -> None:
        self._metrics.policy_fetches.labels("fetched").inc()
        self._metrics.policy_bytes.inc(fetched.received_bytes)
        self._metrics.policy_decode_seconds.inc(fetched.decode_seconds)

    async def _decoded(self, run_id: str, fetched: FetchedPolicy) -> HeldPolicy:
        try:
            if len(fetched.data) <= _DECODE_INLINE_BYTES:
                policy = self._decode(fetched.data)
            else:
                policy = await asyncio.to_thread(self._decode, fetched.data)
        except Exception as error:
            # The code of a policy may raise anything.
            self._metrics.policy_fetches.labels("corrupt").inc()
            why = error.message if isinstance(error, FleetError) else sentence(error)
            text = f"policy version {fetched.version} of run {run_id!r} cannot be used: {why}"
            raise FailedPrecondition(text, reason=CORRUPT) from error
        return HeldPolicy(fetched.version, fetched.digest, policy, fetched.run_uid, len(fetched.data))

    def _keep(self, run: _Run, policy: HeldPolicy) -> None:
        run.held[policy.version] = policy
        while len(run.held) > _VERSIONS_KEPT:
            # The oldest is removed first, so the newest is always kept.
            del run.held[min(run.held)]

    def _keep_asked(self, run: _Run, policy: HeldPolicy) -> None:
        """Keeps a requested version until later ones need the room; the last one is kept, whatever its size."""
        run.asked[policy.version] = policy
        while (
            len(run.asked) > 1 and sum(each.size_bytes for each in run.asked.values()) > self._limits.held_policy_bytes
        ):
            run.asked.popitem(last=False)

    def _fail(self, run: _Run, error: FleetError) -> None:
        for waiter in run.waiting:
            if not waiter.future.done():
                waiter.future.set_exception(error)
