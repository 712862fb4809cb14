"""Limits how much of a server one identity may use: bytes, and time on the shared event loop.

A caller over its share waits before its next message is read; it loses nothing, and others are served in the meantime.
Operators are not paced: the fleet works for them.
"""

import asyncio
import time
import types
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, Self

from parlmesh.errors import ResourceExhausted
from parlmesh.security import Identity, Role
from parlmesh.security.authorisation import UNKNOWN
from parlmesh.security.quotas import QuotaConfig

from .metrics import PACED

CALL_SECONDS = 0.0001
"""The least loop time that gRPC itself takes for a call, before its handler runs and after."""
_MOST_IDENTITIES = 10_000
_PATIENCE_SECONDS = 1.0
"""Longest wait of a unary call; a stream waits as long as it takes."""
_LEAST_SECONDS = 0.001
_NEW = 0.1

Sleep = Callable[[float], Awaitable[None]]

_account: ContextVar["Account | None"] = ContextVar("parlmesh_account", default=None)


class Bucket:
    """Fills at a rate up to one second's worth; may be overdrawn."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._level = rate
        self._since = now

    def take(self, amount: float, now: float) -> None:
        self._level = min(self._rate, self._level + (now - self._since) * self._rate) - amount
        self._since = now

    def debt_seconds(self, now: float) -> float:
        """Seconds until nothing is overdrawn."""
        self.take(0.0, now)
        return max(0.0, -self._level / self._rate)


class Account:
    """The bytes and time that one identity has used."""

    def __init__(
        self, identity: Identity, quotas: QuotaConfig, share: float, monotonic: Callable[[], float], sleep: Sleep
    ) -> None:
        self._identity = identity
        self._quotas = quotas
        self._share = share
        self._monotonic = monotonic
        self._sleep = sleep
        self._bytes = Bucket(quotas.bytes_per_second, monotonic())
        self._seconds = Bucket(share, monotonic())
        self._turn = asyncio.Lock()
        self._usual = 0.0
        self._spent = 0.0

    def take_bytes(self, count: int) -> None:
        self._bytes.take(count, self._monotonic())

    def take_seconds(self, seconds: float) -> None:
        self._spent += seconds
        self._seconds.take(seconds, self._monotonic())

    async def admit_call(self) -> None:
        """Called before a unary call; ResourceExhausted when it would wait too long."""
        debt = self._debt()
        if debt > _PATIENCE_SECONDS:
            raise ResourceExhausted(
                f"{self._identity} has taken more than its share: security.quotas allow {self._share:g} of "
                f"the server's time and {self._quotas.bytes_per_second:g} bytes a second",
                reason="TOO_MUCH_WORK",
                retry_after_seconds=debt,
                identity=self._identity,
            )
        if debt > 0:
            PACED.inc()
            await self._sleep(debt)

    async def reserve(self, reserved: float) -> float:
        """Called before the next message of a stream: releases the reservation for the last one, and returns the new
        one.

        Streams of one identity pass one after the other, each reserving what a message usually takes: otherwise all
        waiting streams would continue at the same moment.
        """
        self._seconds.take(-reserved, self._monotonic())
        self._usual, self._spent = (1.0 - _NEW) * self._usual + _NEW * self._spent, 0.0
        if self._turn.locked() or self._debt() > 0:
            PACED.inc()
            async with self._turn:
                while (debt := self._debt()) > 0:
                    await self._sleep(max(_LEAST_SECONDS, debt))
        self._seconds.take(self._usual, self._monotonic())
        return self._usual

    def _debt(self) -> float:
        now = self._monotonic()
        return max(self._bytes.debt_seconds(now), self._seconds.debt_seconds(now))


class Accounts:
    """One account per identity; the least recently used is forgotten first."""

    def __init__(
        self, quotas: QuotaConfig, monotonic: Callable[[], float] = time.monotonic, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._quotas = quotas
        self._monotonic = monotonic
        self._sleep = sleep
        self._accounts: OrderedDict[Identity, Account] = OrderedDict()

    def open(self, identity: Identity) -> Account | None:
        """The account of an identity; None for an identity that is not paced."""
        if identity.owns_fleet or identity is UNKNOWN:
            return None
        share = self._quotas.loop_share
        if identity.role is Role.OPERATOR:
            # A team has one account, under however many names it calls.
            identity, share = (
                Identity(identity.namespace, Role.OPERATOR, identity.namespace),
                self._quotas.team_loop_share,
            )
        account = self._accounts.pop(identity, None) or Account(
            identity, self._quotas, share, self._monotonic, self._sleep
        )
        self._accounts[identity] = account
        if len(self._accounts) > _MOST_IDENTITIES:
            self._accounts.popitem(last=False)
        return account


def set_account(account: Account | None) -> None:
    """Sets the account that the current call is charged to."""
    _account.set(account)


def has_account() -> bool:
    """Whether the current call is charged to an account."""
    return _account.get() is not None


def take_bytes(count: int) -> bool:
    """Charges a message of `count` bytes to the current call's account; returns whether its caller has one."""
    account = _account.get()
    if account is None:
        return False
    account.take_bytes(count)
    return True


class Paced:
    """The messages of a stream, no faster than its caller may send them."""

    def __init__(self, messages: AsyncIterable[Any], account: Account, read: Callable[[Any], Any] | None) -> None:
        self._messages = messages
        self._iterator: AsyncIterator[Any] | None = None
        self._account = account
        self._read = read
        self._reserved = 0.0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        self._reserved = await self._account.reserve(self._reserved)
        if self._iterator is None:
            # Made only when it is read: gRPC's own iterator warns if it is never used.
            self._iterator = aiter(self._messages)
        message = await anext(self._iterator)
        return message if self._read is None else self._read(message)


def paced(messages: AsyncIterable[Any], read: Callable[[Any], Any] | None = None) -> AsyncIterable[Any]:
    """The messages of the current call. If its caller has an account they are paced, and passed through `read`, which
    charges their bytes to it; otherwise they are passed on unchanged."""
    account = _account.get()
    return messages if account is None else Paced(messages, account, read)


async def metered(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs the work, and charges the time it holds the loop to the current call's account."""
    account = _account.get()
    return await (work if account is None else _steps(work, account))


@types.coroutine
def _steps(work: Coroutine[Any, Any, Any], account: Account) -> Generator[Any, Any, Any]:
    error: BaseException | None = None
    while True:
        started = time.thread_time()
        try:
            wanted = work.send(None) if error is None else work.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            account.take_seconds(time.thread_time() - started)
        error = None
        try:
            yield wanted
        except BaseException as raised:
            error = raised
