"""What each connected actor is sent: assignments, revocations, commands, welcomes, in the order of decisions."""

from collections.abc import Callable
from functools import partial

from parlmesh.errors import Unavailable
from parlmesh.v1.blob_service_pb2 import BlobTerms

from .blob_ledger import BlobLedger, writer_of
from .config import SchedulerConfig
from .core.actions import Assign, Command, Revoke, ToActor, Welcome
from .core.core import Core
from .wire import fast_encode, messages
from .wire.outbox import BREAK, Assignments, Outbox

# How long an acknowledgement waits for an assignment to travel with: one message less for every long-running task.
# Different for each stream: many tasks that ended together are not acknowledged together, in the way of others.
SHORTEST_SECONDS, LONGEST_SECONDS = 0.05, 0.2
_GOLDEN = 0.6180339887498949


class ActorOutboxes:
    """One outbox for each stream, by session."""

    def __init__(
        self,
        core: Core,
        config: SchedulerConfig,
        *,
        clock: Callable[[], float],
        blobs: BlobLedger | None,
        healthy: Callable[[], bool],
        trusted: Callable[[], bool],
        after_commit: Callable[[Callable[[], None]], None],
    ) -> None:
        self._core, self._config, self._clock, self._blobs = core, config, clock, blobs
        self._healthy, self._trusted, self._after_commit = healthy, trusted, after_commit
        self.by_session: dict[int, Outbox] = {}
        """Those of streams that are open."""

    def open(self, session: int) -> Outbox:
        """A stream begins."""
        patience = SHORTEST_SECONDS + (LONGEST_SECONDS - SHORTEST_SECONDS) * (session * _GOLDEN % 1.0)
        outbox = self.by_session[session] = Outbox(patience)
        return outbox

    def end(self, session: int) -> None:
        """A stream has ended; nothing is sent to it any more."""
        self.by_session.pop(session, None)

    def send(self, action: ToActor) -> None:
        """Performs what the core decided for an actor; its stream may have ended meanwhile."""
        outbox = self.by_session.get(action.session)
        if outbox is None:
            return
        if isinstance(action, Assign):
            self._assign(outbox, action)
        elif isinstance(action, Revoke):
            for lease in action.leases:
                outbox.leases.pop(fast_encode.lease(*lease), None)
            revoked = fast_encode.revoked(action.leases)
            # The actor throws away what it has: not for a decision that cannot be written down.
            if self._healthy():
                outbox.put(revoked)
            else:
                self._after_commit(partial(outbox.put, revoked))
        elif isinstance(action, Command):
            outbox.put([fast_encode.command(action.command), BREAK])
        elif isinstance(action, Welcome):
            terms = self._config.leases
            welcome = messages.welcome_to_bytes(
                action.leases,
                terms.heartbeat_seconds,
                terms.duration_seconds,
                self._config.listen.max_message_bytes,
                action.newest_incarnation,
                self._blob_terms(action.session),
            )
            outbox.put([welcome])
        else:
            outbox.close(Unavailable("a newer stream of the same actor took over", reason="STREAM_REPLACED"))

    def _assign(self, outbox: Outbox, action: Assign) -> None:
        assignments = Assignments(self._core, action.session, action.tasks, outbox.leases)
        if action.after_commit:
            self._after_commit(partial(self._assign_late, outbox, assignments))
        elif self._trusted():
            outbox.put([assignments])
        else:
            # Another scheduler may have given them away: only if this can still be written down.
            self._after_commit(partial(outbox.put, [assignments]))

    def _assign_late(self, outbox: Outbox, assignments: Assignments) -> None:
        assignments.begin(self._clock())
        outbox.put([assignments])

    def _blob_terms(self, session: int) -> BlobTerms | None:
        actor = self._core.sessions.by_number.get(session)
        if self._blobs is None or actor is None:
            return None
        return self._blobs.terms(writer_of("a", actor.node_id))
