"""One actor: handles the scheduler's messages and prepares its own. Knows nothing of streams."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Set
from types import TracebackType

from parlmesh.blob_transfer import Exchange
from parlmesh.handlers import Context, Handler, Resettable, RunsIn
from parlmesh.rpc import UNTOLD_MESSAGE_BYTES
from parlmesh.telemetry import get_logger
from parlmesh.v1.fleet_service_pb2 import (
    Assignment,
    ConnectRequest,
    ConnectResponse,
    Heartbeat,
    Hello,
    Lease,
    TaskResult,
    Welcome,
)
from parlmesh.v1.scheduler_service_pb2 import ActorCommand
from parlmesh.v1.task_pb2 import Failure

from ..config import LimitsConfig
from ..metrics import ActorMetrics
from .actor_identity import ActorIdentity
from .attempt_results import CANCELLED, EXITS, SUCCEEDED, UNKNOWN_KIND, call, failed, failure_of, success
from .failure_log import FailureLog
from .lease_ledger import Ledger
from .slot import Slot
from .slots import Slots, has_blobs

log = get_logger("parlmesh.actor")

# Bytes of a message that surround a result.
_RESULT_FRAME_BYTES = 4 << 10
# More results than this are ready for the next message at once.
_RESULTS_PER_MESSAGE = 1024


class ActorSession:
    """Runs the tasks that the scheduler assigns; used as a context manager, which owns the attempts.

    `outbound` is set whenever `next_request` may have something to say, `asked_to_leave` when an operator drains it.
    Handlers that run inline take no slot: they have ended when `receive` returns.
    """

    def __init__(
        self,
        identity: ActorIdentity,
        handlers: Mapping[str, Handler],
        *,
        slots: int,
        labels: Mapping[str, str],
        limits: LimitsConfig,
        metrics: ActorMetrics,
        policy_version: Callable[[], int],
        on_reset: Callable[[], None],
        exchange: Exchange,
        metrics_port: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.identity = identity
        self.outbound = asyncio.Event()
        self.asked_to_leave = asyncio.Event()
        self._handlers = handlers
        self._inline = {kind: handler for kind, handler in handlers.items() if handler.runs_in == RunsIn.INLINE}
        # Each is at hand, because even an idle fleet looks one up between a task and its result.
        self._inline_successes = {kind: metrics.tasks.labels(kind, SUCCEEDED) for kind in self._inline}
        self._labels = labels
        self._metrics = metrics
        self._policy_version = policy_version
        self._on_reset = on_reset
        self._clock = clock
        self._exchange = exchange
        self._message_bytes = limits.message_bytes
        self._metrics_port = metrics_port
        self._result_bytes = 0
        self._ledger = Ledger(slots=slots, unacknowledged_limit=limits.unacknowledged_results)
        self._prefetch = limits.prefetch
        self._slots = Slots(
            [
                Slot(
                    index,
                    actor_id=identity.actor_id,
                    stop_seconds=limits.stop_seconds,
                    metrics=metrics,
                    blobs=exchange.blobs,
                )
                for index in range(slots)
            ],
            handlers,
            metrics=metrics,
            clock=clock,
            on_end=self._ended,
            on_tail=self.outbound.set,
            exchange=exchange,
        )
        self._limit_results(UNTOLD_MESSAGE_BYTES)
        self._failures = FailureLog(identity.actor_id)
        self._stopping: set[int] = set()
        self._told_tails: set[int] = set()
        self._leaving = self._leaving_sent = False
        self._drained = asyncio.Event()

    async def __aenter__(self) -> "ActorSession":
        await self._slots.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._slots.__aexit__(kind, error, traceback)
        finally:
            self._reset_handlers()

    def hello(self) -> Hello:
        """The first words of a new stream."""
        self._leaving_sent = False
        self.outbound.set()
        return Hello(
            node_id=self.identity.node_id,
            actor_id=self.identity.actor_id,
            incarnation=self.identity.incarnation,
            slots=len(self._slots),
            kinds=sorted(self._handlers),
            labels=self._labels,
            leases=self._ledger.reconnect(),
            message_bytes=self._message_bytes,
            metrics_port=self._metrics_port,
        )

    def welcome(self, welcome: Welcome) -> None:
        """Stops tasks that the scheduler has given to other actors in the meantime, and takes the size limit of
        results."""
        self._limit_results(welcome.message_bytes or UNTOLD_MESSAGE_BYTES)
        self._exchange.agree(welcome.blobs)
        owed = self._ledger.owed
        for lease_id in self._ledger.keep(lease.lease_id for lease in welcome.leases):
            self._revoke(lease_id)
        self._metrics.refused_results.inc(owed - self._ledger.owed)
        self._check_drained()

    def receive(self, response: ConnectResponse) -> None:
        """Handles one message of the scheduler.

        A command was given before the assignments beside it were decided, and a lease that is assigned and revoked in
        one message was revoked last: every lease is given once.
        """
        if response.command:
            self._obey(response.command)
        revoked: set[int] = set()
        if response.revoked:
            revoked = {lease.lease_id for lease in response.revoked}
            for lease_id in revoked:
                self._revoke(lease_id)
        acknowledge = self._ledger.acknowledge
        for lease in response.acknowledged:
            acknowledge(lease.lease_id)
        if response.assignments:
            self._take(response.assignments, revoked)
        if self._leaving:
            self._check_drained()

    def next_request(self, *, heartbeat: bool = False) -> ConnectRequest | None:
        """Everything that is ready, or None when nothing is."""
        self.outbound.clear()
        # A task behind a tail may start now: the scheduler must not consider it waiting.
        heartbeat = heartbeat or not self._slots.tails <= self._told_tails
        # A heartbeat is sent first and alone, so that it never makes a message of results too large.
        results = (
            []
            if heartbeat
            else self._ledger.take_results(limit=_RESULTS_PER_MESSAGE, limit_bytes=self._result_bytes // 2)
        )
        if self._ledger.has_unsent:
            self.outbound.set()
        credits = 0 if self._leaving else self._ledger.grant(self._prefetch - len(self._stopping))
        leaving = self._leaving and not self._leaving_sent
        if not (results or credits or heartbeat or leaving):
            return None
        self._leaving_sent = self._leaving
        request = ConnectRequest(credits=credits, results=results, leaving=leaving)
        if heartbeat:
            self._told_tails = set(self._slots.tails)
            request.heartbeat.CopyFrom(
                Heartbeat(
                    leases=self._ledger.held_leases(),
                    policy_version=self._policy_version(),
                    waiting_lease_ids=self._slots.tails,
                )
            )
        return request

    @property
    def has_waiting(self) -> bool:
        """Whether tasks wait here for a slot."""
        return self._slots.has_waiting

    def leave(self) -> None:
        """Takes no further tasks; those it holds continue."""
        self._leaving = True
        self.outbound.set()
        self._check_drained()

    async def drained(self, seconds: float) -> bool:
        """Waits until everything held has ended and is acknowledged; False when that took longer."""
        try:
            async with asyncio.timeout(seconds):
                await self._drained.wait()
        except TimeoutError:
            log.warning("drain_cut_short", held=self._ledger.held, unacknowledged=self._ledger.owed, seconds=seconds)
        return self._drained.is_set()

    def _limit_results(self, server_bytes: int) -> None:
        self._result_bytes = self._slots.result_bytes = min(self._message_bytes, server_bytes) - _RESULT_FRAME_BYTES
        self._exchange.blobs.message_bytes = self._result_bytes

    def _check_drained(self) -> None:
        if self._leaving and not self._ledger.held and not self._ledger.owed:
            self._drained.set()

    def _take(self, assignments: Iterable[Assignment], revoked: Set[int]) -> None:
        succeeded: dict[str, int] = {}
        slots_wanted = False
        ledger, inline, exchange = self._ledger, self._inline, self._exchange
        for assignment in assignments:
            lease, kind = assignment.lease, assignment.kind
            lease_id = lease.lease_id
            if not ledger.spend(lease_id):
                self._metrics.duplicate_assignments.inc()
            elif lease_id in revoked:
                self._metrics.revoked.inc()
            elif kind in inline and (exchange.blobs.shared or not has_blobs(assignment)):
                result = self._run_inline(inline[kind], assignment, lease)
                ledger.owe(lease_id, result)
                if result.HasField("result"):
                    succeeded[kind] = succeeded.get(kind, 0) + 1
                else:
                    self._metrics.tasks.labels(kind, result.failure.reason).inc()
                    self._failures.add(kind, lease, result.failure)
            elif kind in self._handlers:
                ledger.hold(lease)
                self._slots.add(assignment)
                slots_wanted = True
            else:
                text = f"actor {self.identity.actor_id} has no handler {kind!r}"
                ledger.owe(lease_id, failed(lease, Failure(reason=UNKNOWN_KIND, message=text), 0.0))
                self._metrics.tasks.labels("", UNKNOWN_KIND).inc()
        if ledger.has_unsent:
            self.outbound.set()
        if slots_wanted:
            self._slots.fill()
        for kind, count in succeeded.items():
            self._inline_successes[kind].inc(count)

    def _run_inline(self, handler: Handler, assignment: Assignment, lease: Lease) -> TaskResult:
        context = Context(task_id=lease.task_id, attempt=lease.attempt, actor_id=self.identity.actor_id, slot=0)
        started = self._clock()
        try:
            payload = call(handler, assignment, context, self._exchange.blobs)
        except Exception as error:
            return failed(lease, failure_of(error), self._clock() - started)
        return success(lease, payload, self._clock() - started, limit_bytes=self._result_bytes)

    def _ended(self, kind: str, lease_id: int, result: TaskResult | None) -> None:
        self._stopping.discard(lease_id)
        if result is not None:
            self._ledger.finish(lease_id, result)
            if result.HasField("failure"):
                self._failures.add(kind, result.lease, result.failure)
        self.outbound.set()
        self._check_drained()

    def _revoke(self, lease_id: int) -> None:
        if self._ledger.drop(lease_id):
            self._metrics.revoked.inc()
        if self._slots.stop(lease_id):
            self._stopping.add(lease_id)
        self.outbound.set()

    def _obey(self, command: ActorCommand.ValueType) -> None:
        log.info("commanded", actor_id=self.identity.actor_id, command=ActorCommand.Name(command))
        if command == ActorCommand.ACTOR_COMMAND_RESET:
            self._reset()
        elif command == ActorCommand.ACTOR_COMMAND_DRAIN:
            self.asked_to_leave.set()

    def _reset(self) -> None:
        text = f"dropped by a reset of actor {self.identity.actor_id}"
        for lease in self._ledger.held_leases():
            failure = Failure(reason=CANCELLED, message=text, retryable=True)
            self._ledger.finish(lease.lease_id, failed(lease, failure, 0.0))
            if self._slots.stop(lease.lease_id):
                self._stopping.add(lease.lease_id)
        self._slots.reset()
        self._reset_handlers()
        self._on_reset()
        self.outbound.set()

    def _reset_handlers(self) -> None:
        for handler in self._handlers.values():
            if isinstance(handler, Resettable):
                try:
                    handler.reset()
                except (Exception, *EXITS) as error:
                    # An error in its cleanup concerns only itself; the actor and the other handlers continue.
                    log.exception("reset_failed", error, actor_id=self.identity.actor_id, kind=handler.kind)
