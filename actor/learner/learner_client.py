"""The learner as handlers in threads see it: plain calls that wait on the event loop and notice a cancellation."""

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import Any, TypeVar

from parlmesh.handlers import Cancelled, Context
from parlmesh.wire import EncodedTrajectory

from .policy_cache import HeldPolicy, PolicyCache
from .trajectory_uploads import Receipt, Uploads

_T = TypeVar("_T")
# How long a cancelled handler may still sit in a wait.
_POLL_SECONDS = 0.1


class LearnerLink:
    """Policies in, trajectories out, for the slots of one actor. Made on the event loop, used in threads."""

    def __init__(self, policies: PolicyCache, uploads: Uploads, *, policy_seconds: float) -> None:
        self._policies = policies
        self._uploads = uploads
        self._policy_seconds = policy_seconds
        self._loop = asyncio.get_running_loop()

    def policy(self, run_id: str, min_version: int, context: Context, run_uid: str = "") -> HeldPolicy:
        """The newest policy; waits only when it is older than `min_version`, or of another run under the same id."""
        newest = self._policies.newest(run_id)
        if newest is not None and newest.serves(min_version, run_uid):
            return newest
        seconds = self._policy_seconds
        return self._wait(self._start(self._policies.get(run_id, min_version, seconds, run_uid)), context)

    def exact_policy(self, run_id: str, version: int, context: Context, run_uid: str = "") -> HeldPolicy:
        """Exactly this version."""
        seconds = self._policy_seconds
        return self._wait(self._start(self._policies.get_exact(run_id, version, seconds, run_uid)), context)

    def next_sequence(self) -> int:
        """The number of this actor's next trajectory."""
        return self._uploads.next_sequence()

    def upload(self, trajectory: EncodedTrajectory) -> "concurrent.futures.Future[Receipt]":
        """Starts an upload; it goes on when the handler does not wait for it."""
        return self._start(self._uploads.upload(trajectory))

    def wait_for_end(self, future: "concurrent.futures.Future[Any]", context: Context) -> None:
        """Waits until the future has ended, well or not; Cancelled when the attempt was cancelled meanwhile.

        The future has a deadline of its own.
        """
        while not concurrent.futures.wait((future,), _POLL_SECONDS).done:
            context.check()

    def _wait(self, future: "concurrent.futures.Future[_T]", context: Context) -> _T:
        try:
            self.wait_for_end(future, context)
        except Cancelled:
            future.cancel()
            raise
        return future.result()

    def _start(self, work: Coroutine[Any, Any, _T]) -> "concurrent.futures.Future[_T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)
