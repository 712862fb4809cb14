"""When an actor that the scheduler keeps refusing ends itself: immediately if it never connected, otherwise after a
while."""

import asyncio
from collections.abc import Callable

from parlmesh.errors import FleetError, PermissionDenied, Unauthenticated, Unavailable

# How long valid credentials may be refused, because files on both sides are changed one after the other.
RENEWAL_SECONDS = 60.0
# How often an actor that never connected checks its credentials.
_LOOK_SECONDS = 5.0


class LastingRefusal:
    """Follows the errors that end one actor's streams."""

    def __init__(self, refusal: Callable[[], str]) -> None:
        """`refusal` says what is wrong with the credentials, or nothing if they are fine."""
        self._refusal = refusal
        self._refused_since: float | None = None
        self._next_look = 0.0

    async def check(self, cause: FleetError, *, was_connected: bool) -> None:
        """Raises a permanent refusal. Credentials of an actor that was connected may be about to be renewed."""
        refused: FleetError | None = cause if isinstance(cause, (Unauthenticated, PermissionDenied)) else None
        now = asyncio.get_running_loop().time()
        if isinstance(cause, Unavailable) and not was_connected and now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            found = await asyncio.to_thread(self._refusal)
            refused = Unauthenticated(found, reason="SECURITY") if found else None
        if refused is None:
            self._refused_since = None
            return
        if self._refused_since is None:
            self._refused_since = now
        if not was_connected or now - self._refused_since >= RENEWAL_SECONDS:
            raise refused
