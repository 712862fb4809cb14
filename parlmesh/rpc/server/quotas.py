"""What one identity may have or do at a time on one server."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from parlmesh.errors import ResourceExhausted
from parlmesh.security import ANYONE, Identity, Role
from parlmesh.security.config import QuotaConfig
from parlmesh.security.guard import UNKNOWN

_BURST_SECONDS = 10.0
_MOST_IDENTITIES = 10_000
_MOST_WAITING = 32


class Quotas:
    """Counts by identity; without security there is none to count."""

    def __init__(self, quotas: QuotaConfig, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._quotas = quotas
        self._monotonic = monotonic
        self._streams: Counter[Identity] = Counter()
        self._rates: OrderedDict[Identity, tuple[float, float]] = OrderedDict()
        self._reading: dict[Identity, asyncio.Semaphore] = {}
        self._waiting: Counter[Identity] = Counter()

    def count_call(self, identity: Identity) -> None:
        """ResourceExhausted when the identity calls too often."""
        if identity is ANYONE or identity is UNKNOWN:
            return
        rate, now = self._quotas.calls_per_second, self._monotonic()
        left, since = self._rates.pop(identity, (rate * _BURST_SECONDS, now))
        left = min(rate * _BURST_SECONDS, left + (now - since) * rate)
        self._rates[identity] = (max(0.0, left - 1.0), now)
        if len(self._rates) > _MOST_IDENTITIES:
            self._rates.popitem(last=False)
        if left < 1.0:
            raise ResourceExhausted(
                f"{identity} made more than {rate:g} calls a second; security.quotas.calls_per_second is the limit",
                reason="TOO_MANY_CALLS",
                retry_after_seconds=1.0,
                identity=identity,
            )

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
        """One less."""
        self._streams[identity] -= 1
        if self._streams[identity] <= 0:
            del self._streams[identity]

    async def wait_to_be_read(self, identity: Identity) -> Callable[[], None] | None:
        """Waits until so few requests of an actor or reader are read that one more may be; returns how to end that.

        A request that waits costs at most its stream's window, one that is read its whole size.
        """
        if identity.role is Role.OPERATOR or identity is UNKNOWN:
            return None
        reading = self._reading.get(identity)
        if reading is None:
            reading = self._reading[identity] = asyncio.Semaphore(self._quotas.unread_calls)
        if self._waiting[identity] >= _MOST_WAITING:
            raise ResourceExhausted(
                f"{_MOST_WAITING} calls of {identity} wait to be read already",
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

        return release

    def _leave(self, identity: Identity) -> None:
        """Whoever waits for nothing and reads nothing is forgotten."""
        self._waiting[identity] -= 1
        if self._waiting[identity] <= 0:
            del self._waiting[identity]
            self._reading.pop(identity, None)
