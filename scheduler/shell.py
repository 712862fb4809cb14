"""The shell around the core: gives it the time, performs its actions, and holds answers back until they are durable.

Everything here runs on one event loop, and nothing waits between a core call and its actions, so records, assignments
and answers come in the order of the decisions.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count

from parlmesh import limits
from parlmesh.blobs import MARK
from parlmesh.errors import FleetError, Unavailable
from parlmesh.processes.cpu_wakefulness import Wakefulness
from parlmesh.rpc.task_group import set_within
from parlmesh.telemetry import get_logger
from parlmesh.v1 import fleet_service_pb2 as fleet_pb

from . import failpoints, metrics
from .blob_ledger import BlobLedger, is_given, writer_of
from .config import SchedulerConfig
from .core.actions import Action, Notify, Persist
from .core.actors.actor_sessions import Hello
from .core.actors.placement import Actor, ActorCommand
from .core.core import Core
from .core.task import AttemptEnd, Task
from .decision_guard import Decisions
from .gauges import Exporter
from .store.committer import Committer
from .wire import hot_messages, messages
from .wire.outbox import ActorOutboxes, Outbox
from .wire.task_watches import Watch, Watchers

log = get_logger("parlmesh.scheduler")

# Every reference to a blob contains this.
_BLOB = MARK.encode()


class Shell:
    """Owns the core; the servicers reach the core only through it."""

    def __init__(
        self,
        config: SchedulerConfig,
        core: Core,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        committer: Committer | None = None,
        memory_id: int = 0,
        blobs: BlobLedger | None = None,
        on_failure: Callable[[], None] = lambda: None,
        trusted: Callable[[], bool] = lambda: True,
    ) -> None:
        """`trusted()` is whether no other scheduler can lead the same store."""
        self.core = core
        self._trusted = trusted
        self._config = config
        self.now = clock
        self._wall_clock = wall_clock
        # None = nothing is stored, so no caller waits.
        self._committer = committer
        self._memory_id = memory_id
        self.blobs = blobs
        self._receipts: set[Outbox] = set()
        self._watchers = Watchers()
        self._exporter = Exporter(core)
        self._wakefulness = Wakefulness(config.dispatch.awake_seconds)
        self._sessions = count(1)
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_time = math.inf
        self._stopping = False
        # Surrounds every event of the core.
        self._decision = Decisions(core, durable=committer is not None, on_failure=on_failure)
        self._actors = ActorOutboxes(
            core,
            config,
            clock=clock,
            blobs=blobs,
            healthy=lambda: self.healthy,
            trusted=trusted,
            after_commit=self.after_commit,
        )

    @property
    def healthy(self) -> bool:
        """Whether the store can be written; nothing is accepted while it cannot."""
        return not self.core.life.first_leases_wait and self._trusted()

    @healthy.setter
    def healthy(self, healthy: bool) -> None:
        # First attempts may start while their lease is being written, but not while the store cannot be written.
        self.core.life.first_leases_wait = not healthy

    @property
    def failure(self) -> BaseException | None:
        """The reason why the core can no longer be trusted; it then decides nothing more."""
        return self._decision.failure

    def fail(self, error: BaseException) -> None:
        """Stops all decisions and answers; `run` ends with an error."""
        self._decision.fail(error)

    def next_session(self) -> int:
        """The number of a new stream."""
        return next(self._sessions)

    async def submit(self, tasks: Sequence[Task], owner: str = "", writer: str = "") -> list[str]:
        """Returns the ids once the tasks are durable."""
        task_ids = self.accept(tasks, owner, writer)
        await self.committed()
        return task_ids

    def accept(self, tasks: Sequence[Task], owner: str = "", writer: str = "") -> list[str]:
        """Returns the ids, which must not be announced before `after_commit`. The tasks count against the allowance of
        `owner` and may refer only to blobs of `writer`, if given."""
        self._refuse_when_stopping()
        if not self.healthy:
            raise Unavailable("the store cannot be written at present; try again", reason="STORE_FAILING")
        self._wakefulness.touch()
        try:
            new = []
            # Few tasks use blobs or the results of other tasks.
            if self.blobs is not None and (some := [one for one in tasks if _BLOB in one.body or one.dependencies]):
                new = self.blobs.argued(some, self.core.life.tasks, writer)
            with self._decision:
                task_ids = self.core.submit(tasks, self.now(), owner, hot_messages.payload_bytes)
                for task, references in new:
                    self.blobs.hold(task, references)  # type: ignore[union-attr]
                self._perform()
        except FleetError as error:
            metrics.REFUSED.labels(error.reason.lower()).inc()
            raise
        return task_ids

    @contextmanager
    def receipts(self) -> Iterator[Outbox]:
        """The outbox of a stream of submissions."""
        self._refuse_when_stopping()
        outbox = Outbox()
        self._receipts.add(outbox)
        try:
            yield outbox
        finally:
            self._receipts.discard(outbox)

    def stream_terms(self, writer: str) -> bytes:
        """The terms for a client that follows its tasks, as part of a SubmitTaskStreamResponse."""
        return messages.stream_terms_to_bytes(
            self._memory_id,
            self.core.life.retention.remembers(self.now()),
            self._config.listen.max_message_bytes,
            None if self.blobs is None else self.blobs.terms(writer),
        )

    @contextmanager
    def following(self, submitter: str, outbox: Outbox) -> Iterator[None]:
        """Sends a submitter's future outcomes over the stream of an outbox."""
        watch = Watch(set(), submitter, outbox.ready)
        outbox.more = lambda: hot_messages.followed(watch.drain())
        self._watchers.add(watch, ())
        try:
            yield
        finally:
            self._watchers.remove(watch)

    async def cancel(self, task_ids: Sequence[str]) -> list[str]:
        with self._decision:
            cancelled = self.core.cancel(task_ids, self.now())
            self._perform()
        await self.committed()
        return cancelled

    async def command(
        self, actor_ids: Sequence[str], node_ids: Sequence[str], command: ActorCommand, reason: str = ""
    ) -> list[Actor]:
        """`reason` is for QUARANTINE and STRIKE, which judge whole nodes."""
        with self._decision:
            if command in (ActorCommand.QUARANTINE, ActorCommand.STRIKE):
                actors = self.core.judge(actor_ids, node_ids, command, reason, self.now())
            else:
                actors = self.core.command(actor_ids, command, self.now(), node_ids)
            self._perform()
        await self.committed()
        names = {"actor_ids": list(actor_ids), "node_ids": list(node_ids)}
        log.info("actors_commanded", command=command.name.lower(), **names)
        return actors

    async def rebalance(self) -> int:
        with self._decision:
            moved = self.core.rebalance(self.now())
            self._perform()
        await self.committed()
        return moved

    def connect(self, hello: Hello, data: bytes) -> Outbox:
        """Opens a session with the first message of a stream."""
        self._refuse_when_stopping()
        outbox = self._actors.open(hello.session)
        try:
            with self._decision:
                self.core.connect(hello, self.now())
                self._perform()
        except BaseException:
            self._actors.end(hello.session)
            raise
        log.info(
            "actor_connected",
            actor_id=hello.actor_id,
            node_id=hello.node_id,
            incarnation=hello.incarnation,
            slots=hello.slots,
            leases=len(hello.leases),
        )
        self.receive(hello.session, data)
        return outbox

    def receive(self, session: int, data: bytes) -> None:
        """Takes one encoded ConnectRequest of a connected actor."""
        request = fleet_pb.ConnectRequest.FromString(data)
        heartbeat = request.heartbeat if request.HasField("heartbeat") else None
        if heartbeat is not None:
            limits.LEASES.check(max(len(heartbeat.leases), len(heartbeat.waiting_lease_ids)), "a heartbeat")
        limits.RESULTS.check(len(request.results), "a message")
        outbox = self._actors.by_session.get(session)
        known = outbox.leases if outbox is not None else {}
        ends: Sequence[AttemptEnd]
        ends, leases = hot_messages.results(data, known) if request.results else ((), ())
        if ends:
            self._wakefulness.touch()
            if _BLOB in data:
                # Asked once for all of them: few results have any.
                ends = self._checked_blobs(session, ends)
        with self._decision:
            self.core.report(
                session,
                self.now(),
                credits=request.credits,
                results=ends,
                heartbeat=None if heartbeat is None else heartbeat.leases,
                slotless=() if heartbeat is None else heartbeat.waiting_lease_ids,
                policy_version=0 if heartbeat is None else heartbeat.policy_version,
                leaving=request.leaving,
            )
            self._perform()
        if leases and outbox is not None:
            for lease in leases:
                known.pop(lease, None)
            self.after_commit(partial(outbox.put_patiently, hot_messages.acknowledged(leases)))
        actor = self.core.sessions.by_number.get(session)
        if outbox is not None and actor is not None and (actor.draining or not actor.credits):
            # The actor waits for acknowledgements before it leaves or takes more.
            self.after_commit(outbox.ready.set)

    def strike(self, session: int, error: FleetError) -> None:
        """Counts a refused message against the node of this stream."""
        with self._decision:
            self.core.strike(session, error.message, self.now())
            self._perform()

    def disconnect(self, session: int) -> None:
        actor = self.core.sessions.by_number.get(session)
        replaced = actor is None or actor.session != session
        self._actors.end(session)
        if self.failure is not None:
            return
        with self._decision:
            self.core.disconnect(session, self.now())
            self._perform()
        if actor is not None and not replaced:
            log.info("actor_disconnected", actor_id=actor.actor_id, leases=len(actor.leases))

    @contextmanager
    def watching(self, task_ids: Sequence[str], submitter: str) -> Iterator[Watch]:
        """Follows tasks by id, those already final first, or all future outcomes of a submitter."""
        self._refuse_when_stopping()
        limits.TASK_IDS.check(len(task_ids), "the request")
        limits.SUBMITTER.check_text(submitter)
        tasks = [self.core.task(task_id) for task_id in dict.fromkeys(task_ids)]
        watch = Watch({task.task_id for task in tasks}, "" if tasks else submitter)
        self._watchers.add(watch, [task.task_id for task in tasks if not task.final])
        try:
            # Their outcomes may be decided but not yet durable.
            early = [task.task_id for task in tasks if task.final]
            self.after_commit(partial(watch.give_early, early, self.core.life.tasks.get))
            yield watch
        finally:
            self._watchers.remove(watch)

    async def run(self, stop: asyncio.Event) -> None:
        """Lets time pass in the core until told to stop."""
        interval = self._config.dispatch.tick_seconds
        while not stop.is_set():
            before = self.now()
            if not await set_within(stop, interval):
                metrics.EVENT_LOOP_LAG.set(max(0.0, self.now() - before - interval))
            self._decision.end()
            with self._decision:
                self.core.tick(self.now(), self._wall_clock())
                self._perform()
            self._exporter.export(self.now())
            if self.blobs is not None:
                self.blobs.sweep()

    def close(self, error: FleetError | None = None) -> None:
        """Ends every stream; actors and watchers come back to the next scheduler."""
        self._stopping = True
        self._wakefulness.close()
        if self._alarm is not None:
            self._alarm.cancel()
        error = error or _stopping()
        for outbox in (*self._actors.by_session.values(), *self._receipts):
            outbox.close(error)
        self._watchers.close(error)

    def _perform(self) -> None:
        """Performs the core's actions, records first. A failure leaves the core ahead of the journal: see Decisions."""
        if failpoints.armed:
            failpoints.hit(failpoints.AFTER_DECISION)
        try:
            for action in self.core.take_actions():
                self._perform_one(action)
        except FleetError as error:
            # Not a refusal: the core has changed.
            raise RuntimeError(f"an action could not be performed: {error.message}") from error
        if self.core.next_ending < self._alarm_time:
            self._set_alarm(self.core.next_ending)

    def _perform_one(self, action: Action) -> None:
        if isinstance(action, Persist):
            if self._committer is not None:
                self._committer.add(action)
        elif isinstance(action, Notify):
            if self.blobs is not None and self.blobs.used:
                self.blobs.ended(action.tasks)
            self.after_commit(partial(self._announce, action.tasks))
        else:
            self._actors.send(action)

    def _set_alarm(self, time: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        delay = max(0.0, time - self.now())
        self._alarm, self._alarm_time = asyncio.get_running_loop().call_later(delay, self._foresee), time

    def _foresee(self) -> None:
        self._alarm, self._alarm_time = None, math.inf
        with self._decision:
            self.core.foresee(self.now())
            self._perform()

    def _announce(self, tasks: list[Task]) -> None:
        self.core.announced(len(tasks))
        self._watchers.notify(tasks)

    def _checked_blobs(self, session: int, ends: Sequence[AttemptEnd]) -> Sequence[AttemptEnd]:
        actor = self.core.sessions.by_number.get(session)
        if self.blobs is None or actor is None:
            return ends
        return self.blobs.checked(ends, writer_of("a", actor.node_id), partial(is_given, self.core))

    def after_commit(self, release: Callable[[], None]) -> None:
        """Calls `release` once everything decided so far is durable, in the order of the calls."""
        self._decision.check()
        if self._committer is None:
            release()
        else:
            self._committer.after_commit(release)

    async def committed(self) -> None:
        """Waits until everything decided so far is durable: a decision that a crash could undo is never announced."""
        self._decision.check()
        if self._committer is not None:
            await self._committer.committed()

    def _refuse_when_stopping(self) -> None:
        self._decision.check()
        if self._stopping:
            raise _stopping()


def _stopping() -> Unavailable:
    return Unavailable("the scheduler is stopping; try again", reason="STOPPING")
