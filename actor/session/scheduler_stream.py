"""The actor's stream to the scheduler: reconnects without end, reads and writes independently, keeps the heartbeat."""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import grpc.aio

from parlmesh.errors import DeadlineExceeded, FleetError, InvalidInput, Unavailable
from parlmesh.rpc import Backoff, set_within, together
from parlmesh.telemetry import get_logger
from parlmesh.v1.fleet_service_pb2 import ConnectRequest, ConnectResponse, Welcome

from ..config import LimitsConfig
from ..metrics import ActorMetrics
from ..stream_errors import STREAM_ERRORS, fleet_error_of
from .lasting_refusal import LastingRefusal
from .session import ActorSession

if TYPE_CHECKING:
    from parlmesh.v1.fleet_service_pb2_grpc import FleetServiceAsyncStub

log = get_logger("parlmesh.actor")

_Call: TypeAlias = "grpc.aio.StreamStreamCall[ConnectRequest, ConnectResponse]"
# The scheduler's reason when a later start has replaced this actor: it must not come back.
OLD_INCARNATION = "OLD_INCARNATION"
# Longest wait for the scheduler to notice that a later start is dead.
_LONGEST_LAPSE_SECONDS = 600.0
# The interval when the scheduler names none.
_DEFAULT_HEARTBEAT_SECONDS = 1.0
# Least time between two messages while other tasks wait here: short ones would each have a separate message, which
# costs both sides more than the task.
_GATHER_SECONDS = 0.001


class Uplink:
    """Carries one actor's messages. Everything that is ready is put into one; the first after a pause waits for
    nothing."""

    def __init__(
        self,
        session: ActorSession,
        stub: "FleetServiceAsyncStub",
        *,
        scheduler: str,
        limits: LimitsConfig,
        metrics: ActorMetrics,
        rng: random.Random,
        refusal: Callable[[], str] = lambda: "",
    ) -> None:
        self._session = session
        self._refusals = LastingRefusal(refusal)
        self._rival_until: float | None = None
        self._was_connected = False
        self._joined, self._apart = asyncio.Event(), asyncio.Event()
        self._apart.set()
        self._stub = stub
        self._scheduler = scheduler
        self._connect_seconds = limits.connect_seconds
        self._metrics = metrics
        self._backoff = Backoff(limit=limits.reconnect_seconds, rng=rng)
        self._heartbeat_due = False
        self._away = False
        self._closing = asyncio.Event()

    async def run(self) -> None:
        """Connects and reconnects until closed or cancelled.

        An error that no reconnection cures ends it: a later start took its place, or the credentials are refused.
        """
        actor_id = self._session.identity.actor_id
        while not self._closing.is_set():
            try:
                await self._one_stream()
            except STREAM_ERRORS as error:
                cause = fleet_error_of(error)
            if self._closing.is_set():
                break
            await self._check(cause)
            pause = self._backoff.next()
            self._metrics.reconnects.labels("scheduler").inc()
            # Logged once, so that a scheduler that stays unreachable does not fill the log.
            (log.debug if self._away else log.warning)(
                "disconnected",
                actor_id=actor_id,
                scheduler=self._scheduler,
                reason=cause.reason,
                message=cause.message,
                retry_seconds=round(pause, 3),
            )
            self._away = True
            await set_within(self._closing, pause)
        log.info("left", actor_id=actor_id, scheduler=self._scheduler)

    async def _check(self, cause: FleetError) -> None:
        """Raises errors that will not pass."""
        if cause.reason == OLD_INCARNATION:
            newest = int(cause.metadata.get("newest_incarnation", 0))
            if self._succeeds(newest) or self._outwaits(float(cause.metadata.get("lapse_seconds", 0.0))):
                return
        if cause.reason == OLD_INCARNATION or isinstance(cause, InvalidInput):
            raise cause
        await self._refusals.check(cause, was_connected=self._was_connected)

    @property
    def connected(self) -> bool:
        """Whether the scheduler has welcomed the open stream."""
        return self._joined.is_set()

    async def stays_away(self, seconds: float) -> None:
        """Returns once there has been no connection for `seconds`."""
        while True:
            await self._apart.wait()
            try:
                async with asyncio.timeout(seconds):
                    await self._joined.wait()
            except TimeoutError:
                return

    def close(self) -> None:
        """Sends the messages that are ready, ends the stream and lets `run` return."""
        self._closing.set()
        self._session.outbound.set()

    async def _one_stream(self) -> None:
        """One stream from hello to its end, which is always an error."""
        # No deadline: the stream lasts as long as the actor; keepalive notices a dead peer.
        call = self._stub.Connect()
        try:
            welcome = await self._greet(call)
            self._away, self._was_connected = False, True
            log.info("connected", actor_id=self._session.identity.actor_id, scheduler=self._scheduler)
            self._joined.set()
            self._apart.clear()
            with self._metrics.connected.track_inprogress():
                await together(self._read(call), self._write(call), self._beat(_heartbeat_seconds(welcome)))
        finally:
            self._joined.clear()
            self._apart.set()
            call.cancel()

    async def _greet(self, call: _Call) -> Welcome:
        try:
            async with asyncio.timeout(self._connect_seconds):
                await call.write(ConnectRequest(hello=self._session.hello()))
                response = await call.read()
        except TimeoutError:
            text = f"no welcome from {self._scheduler} within {self._connect_seconds:g} seconds"
            raise DeadlineExceeded(text) from None
        if not isinstance(response, ConnectResponse) or not response.HasField("welcome"):
            raise Unavailable(f"{self._scheduler} ended the stream without a welcome")
        if self._succeeds(response.welcome.newest_incarnation):
            raise Unavailable(
                "an earlier start had a later clock; this one connects again with a later incarnation",
                reason="CLOCK_WENT_BACK",
            )
        self._session.welcome(response.welcome)
        self._session.receive(response)
        return response.welcome

    def _succeeds(self, newest: int) -> bool:
        """Takes the incarnation after the newest known one if this start was never welcomed; tells whether it did."""
        return not self._was_connected and self._session.identity.succeed(newest)

    def _outwaits(self, lapse_seconds: float) -> bool:
        """Whether the newer instance may be dead without the scheduler having noticed. If it is still connected after
        that time, it is alive."""
        if self._was_connected or not self._session.identity.from_clock or not lapse_seconds > 0:
            return False
        now = asyncio.get_running_loop().time()
        if self._rival_until is None:
            self._rival_until = now + min(lapse_seconds, _LONGEST_LAPSE_SECONDS) + _DEFAULT_HEARTBEAT_SECONDS
            log.warning(
                "later_start_is_connected",
                actor_id=self._session.identity.actor_id,
                advice="this one continues if the other is dead, otherwise it ends",
                wait_seconds=round(self._rival_until - now, 1),
            )
        return now < self._rival_until

    async def _read(self, call: _Call) -> None:
        while isinstance(response := await call.read(), ConnectResponse):
            self._session.receive(response)
        raise Unavailable(f"{self._scheduler} ended the stream")

    async def _write(self, call: _Call) -> None:
        outbound, clock, written = self._session.outbound, asyncio.get_running_loop().time, 0.0
        try:
            while True:
                await outbound.wait()
                if self._session.has_waiting and (early := _GATHER_SECONDS - (clock() - written)) > 0:
                    await asyncio.sleep(early)
                heartbeat, self._heartbeat_due = self._heartbeat_due, False
                request = self._session.next_request(heartbeat=heartbeat)
                if request is not None:
                    await call.write(request)
                    written = clock()
                if self._closing.is_set() and not outbound.is_set():
                    await call.done_writing()
                    return
        except asyncio.InvalidStateError:
            return  # the stream has ended; the reader says why

    async def _beat(self, interval_seconds: float) -> None:
        while True:
            self._heartbeat_due = True
            self._session.outbound.set()
            await asyncio.sleep(interval_seconds)
            self._backoff.reset()  # a stream that lasted ends a series of failures


def _heartbeat_seconds(welcome: Welcome) -> float:
    return welcome.heartbeat_interval.ToNanoseconds() / 1e9 or _DEFAULT_HEARTBEAT_SECONDS
