"""The learner's policies for handlers in threads: plain calls that wait on the event loop."""

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import Any

from parlmesh.handlers import Cancelled, Context

from .policy_cache import HeldPolicy, PolicyCache

# How long a cancelled handler may still wait.
_POLL_SECONDS = 0.1


class PolicyLink:
    """Gives the slots of one actor their policies. Made on the event loop, used in threads."""

    def __init__(self, policies: PolicyCache, *, policy_seconds: float) -> None:
        self._policies = policies
        self._policy_seconds = policy_seconds
        self._loop = asyncio.get_running_loop()

    def policy(self, run_id: str, min_version: int, context: Context, run_uid: str = "") -> HeldPolicy:
        """The newest policy; waits only when it is older than `min_version`, or of another run under the same id."""
        newest = self._policies.newest(run_id)
        if newest is not None and newest.serves(min_version, run_uid):
            return newest
        return self._wait(self._policies.get(run_id, min_version, self._policy_seconds, run_uid), context)

    def exact_policy(self, run_id: str, version: int, context: Context, run_uid: str = "") -> HeldPolicy:
        """Exactly this version."""
        return self._wait(self._policies.get_exact(run_id, version, self._policy_seconds, run_uid), context)

    def _wait(self, work: Coroutine[Any, Any, HeldPolicy], context: Context) -> HeldPolicy:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            wait_for_end(future, context)
        except Cancelled:
            future.cancel()
            raise
        return future.result()


def wait_for_end(future: "concurrent.futures.Future[Any]", context: Context) -> None:
    """Waits until the future has ended, even with an error; raises Cancelled if the attempt is cancelled in the
    meantime.

    The future has its own deadline.
    """
    while not concurrent.futures.wait((future,), _POLL_SECONDS).done:
        context.check()
