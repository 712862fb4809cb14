"""Per-identity quotas on one server."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from parlmesh.errors import FleetError, ResourceExhausted
from parlmesh.security import ANYONE, Identity
from parlmesh.security.authorisation import UNKNOWN
from parlmesh.security.quotas import QuotaConfig
from parlmesh.token_bucket import Rates

_MOST_WAITING = 32
_UNREAD_SECONDS = 10.0
_MOST_HELD = 16
_HOLD_SECONDS = 1.0
_HELD_REASONS = ("TOO_MANY_CALLS", "TOO_MANY_REFUSALS")
_MOST_IN_LINE = 128
_BREATH_SECONDS = 0.02
"""Time between two answers to refused calls of one identity."""


class Quotas:
    """Counts by identity; without security there is none to count."""

    def __init__(self, quotas: QuotaConfig, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._quotas = quotas
        self._monotonic = monotonic
        self._streams: Counter[Identity] = Counter()
        self._calls: Rates[Identity] = Rates(quotas.calls_per_second)
        self._refusals: Rates[Identity] = Rates(quotas.refusals_per_second)
        self._reading: dict[Identity, asyncio.Semaphore] = {}
        self._waiting: Counter[Identity] = Counter()
        self._held: Counter[str] = Counter()
        # When the last refusal that waits in line will be answered, by identity.
        self._answered: dict[str, float] = {}
        # Identities that sent a message that was too large, and until when none of their unary calls is read.
        self._unread: dict[Identity, float] = {}

    def count_call(self, identity: Identity) -> None:
        """ResourceExhausted when the identity calls too often, or was refused too often."""
        if identity is ANYONE or identity is UNKNOWN:
            return
        now = self._monotonic()
        if (wait := self._calls.wait(identity, now)) > 0:
            raise ResourceExhausted(
                f"{identity} made more than {self._quotas.calls_per_second:g} calls a second; "
                "security.quotas.calls_per_second is the limit",
                reason="TOO_MANY_CALLS",
                retry_after_seconds=max(1.0, wait),
                identity=identity,
            )
        self._calls.take(identity, now)
        if (wait := self._refusals.wait(identity, now)) > 0:
            raise ResourceExhausted(
                f"{identity} had more than {self._quotas.refusals_per_second:g} calls a second refused; "
                "security.quotas.refusals_per_second is the limit",
                reason="TOO_MANY_REFUSALS",
                retry_after_seconds=max(1.0, wait),
                identity=identity,
            )

    def count_refusal(self, identity: Identity) -> None:
        """Counts a call that the identity may not make, or that was no valid request."""
        if identity is not ANYONE and identity is not UNKNOWN:
            self._refusals.take(identity, self._monotonic())

    async def hold(self, error: FleetError) -> None:
        """Makes refusals of one identity wait in line, so that many at once do not delay other callers.

        A caller that calls, or is refused, too often waits longer, because most come again as soon as they have the
        answer. Few wait at a time, because their messages stay in memory in the meantime.
        """
        identity = error.metadata.get("identity", "")
        if error.reason in _HELD_REASONS and self._held[identity] < _MOST_HELD:
            self._held[identity] += 1
            try:
                await asyncio.sleep(_HOLD_SECONDS)
            finally:
                self._held[identity] -= 1
                if self._held[identity] <= 0:
                    del self._held[identity]
        await self.stand_in_line(identity)

    async def stand_in_line(self, identity: str) -> None:
        """Waits until it is this answer's turn among those of the identity; if too many wait already, it returns
        immediately."""
        now = self._monotonic()
        if not self._answered.get(identity, 0.0) > now:
            # Identities whose last answer was sent are forgotten.
            self._answered = {one: at for one, at in self._answered.items() if at > now}
            self._answered[identity] = now + _BREATH_SECONDS
            return
        at = self._answered[identity]
        if at - now < _MOST_IN_LINE * _BREATH_SECONDS:
            self._answered[identity] = at + _BREATH_SECONDS
            await asyncio.sleep(at - now)

    def open_stream(self, identity: Identity) -> None:
        """ResourceExhausted when the identity has too many; else the stream counts until `close_stream`."""
        if self._streams[identity] >= self._quotas.streams and identity is not ANYONE:
            raise ResourceExhausted(
                f"{identity} has {self._quotas.streams} open streams here; security.quotas.streams is the limit",
                reason="TOO_MANY_STREAMS",
                retry_after_seconds=1.0,
                identity=identity,
            )
        self._streams[identity] += 1

    def close_stream(self, identity: Identity) -> None:
        """The stream no longer counts."""
        self._streams[identity] -= 1
        if self._streams[identity] <= 0:
            del self._streams[identity]

    def leave_unread(self, identity: Identity) -> None:
        """The identity sent a unary message that is too large for its method: for a while no other is read."""
        if not identity.owns_fleet and identity is not UNKNOWN:
            now = self._monotonic()
            self._unread = {one: until for one, until in self._unread.items() if until > now}
            self._unread[identity] = now + _UNREAD_SECONDS

    def _refuse_unread(self, identity: Identity) -> None:
        if self._unread and (left := self._unread.get(identity, 0.0) - self._monotonic()) > 0:
            raise ResourceExhausted(
                f"a message of {identity} was too large for its method; no unary call of it is read for "
                f"{_UNREAD_SECONDS:g} s",
                reason="MESSAGE_TOO_LARGE",
                retry_after_seconds=left,
                identity=identity,
            )

    async def wait_to_be_read(self, identity: Identity) -> Callable[[], None] | None:
        """Waits until one more request of a stranger may be read; call the result when the reading has ended.

        A request that waits costs at most its stream's window; one that is read costs its whole size.
        """
        if identity.owns_fleet or identity is UNKNOWN:
            return None
        self._refuse_unread(identity)
        reading = self._reading.get(identity)
        if reading is None:
            reading = self._reading[identity] = asyncio.Semaphore(self._quotas.unread_calls)
        if self._waiting[identity] >= _MOST_WAITING:
            raise ResourceExhausted(
                f"{_MOST_WAITING} calls of {identity} are already waiting to be read",
                reason="TOO_MANY_CALLS",
                retry_after_seconds=1.0,
                identity=identity,
            )
        self._waiting[identity] += 1
        try:
            await reading.acquire()
        except BaseException:
            self._leave(identity)
            raise
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                reading.release()
                self._leave(identity)

        try:
            # Another call may have been read in the meantime.
            self._refuse_unread(identity)
        except ResourceExhausted:
            release()
            raise
        return release

    def _leave(self, identity: Identity) -> None:
        """Forgets an identity that waits for nothing and reads nothing."""
        self._waiting[identity] -= 1
        if self._waiting[identity] <= 0:
            del self._waiting[identity]
            self._reading.pop(identity, None)
