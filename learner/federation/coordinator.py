"""Runs one federation: performs the actions of the rounds, records it on disk, and continues after a restart.

A transient failure ends one start of the federation, called a life here, and not the federation: memory is rebuilt from
the journal, nodes are asked again with the same nonces, and the next life continues as after a restart of the learner.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio

from parlmesh.errors import FailedPrecondition, FleetError, InvalidInput, Unavailable
from parlmesh.federation.virtual_nodes import host_of
from parlmesh.telemetry import get_logger

from ..policies.registry import PolicyRegistry
from ..sources.scheduler_client import Dispatcher
from . import definition_file as about_files
from . import metrics
from .journal import JOURNAL, LOST, Journal, encode, read_journal
from .model_versions import ModelFiles, StoredModel
from .model_watches import Watcher, Watchers
from .node_search import ListNodes, NodeSearch
from .node_tasks import NodeTasks
from .noise_key import NOISE_KEY
from .round_timer import RoundTimer
from .rules import events
from .rules.events import Action, Event
from .rules.phase import Phase
from .rules.records import Assignment, Counted, RoundState
from .rules.rounds import Rounds
from .rules.snapshot import state_of
from .task_specs import evaluation_tasks, fit_tasks
from .transient_failures import Obstacle, passing, sentence_of
from .updates.update_aggregation import Aggregator, Joined
from .updates.update_intake import UpdateIntake
from .updates.update_spool import Spool

if TYPE_CHECKING:
    from .masking.secure_sums import SecureSums
    from .masking.unmasking import Unmasking

log = get_logger("parlmesh.learner")

_STOP_SECONDS = 10.0
_READY_SECONDS = 10.0


class Federation:
    """Runs on the event loop; threads aggregate models and check the spool."""

    def __init__(self, folder: Path, channel: grpc.aio.Channel, list_nodes: ListNodes) -> None:
        about = about_files.read(folder)
        self.federation_id, self.created = about.federation_id, about.created
        self.config, self.schema = about.config, about.schema
        self.core = Rounds(self.config)
        self._obstacle = Obstacle(self.federation_id)
        self._folder = folder
        self._channel = channel
        self._search = NodeSearch(self.core, list_nodes, self._obstacle, self._handle)
        self._tasks = NodeTasks(self.core, self._obstacle, self._handle, self._ask, self._spawn)
        self._models = ModelFiles(folder / "models", self.schema, about.metadata)
        age = self._replay(self.core)
        self._timer = RoundTimer(self.core, self._search, self._obstacle, self._handle, age)
        self._model = self._models.whole(self.core.version, self.core.digest)
        self.core.digest = self._model.digest
        # A masked update carries its weight as one more word.
        self._spool = Spool(folder / "updates.bin", self.schema.size + self.config.secure.enabled)
        try:
            self._journal = Journal(folder / JOURNAL)
        except BaseException:
            self._spool.close()
            raise
        self.intake = UpdateIntake(
            self.federation_id, self.core, self.schema, self._spool, self._handle, self._interrupt
        )
        self.watchers = Watchers()
        self._aggregator = Aggregator(self.config, self._models, self._spool, folder)
        self._sums: SecureSums | None = None
        if self.config.secure.enabled:
            # Imported here because only secure federations need its package.
            from .masking import secure_sums

            self._sums = self._tasks.sums = self._timer.sums = secure_sums.SecureSums(
                self.federation_id, self.config, self.core, self._handle, self._tasks.submit, self._sum_is_ready
            )
        self._ended = asyncio.Event()
        self._resumed = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        # Set while memory and journal may differ: nothing may happen until memory is rebuilt from the journal.
        self._disk_error: OSError | MemoryError | None = None
        self._interrupted = asyncio.Event()
        # A model that is a policy is served like any run's.
        self.policies = PolicyRegistry(self.federation_id) if "policy" in about.metadata else None
        self._publish()

    @property
    def obstacle(self) -> str:
        """What the federation waits for; empty while it makes progress."""
        return self._obstacle.sentence

    @property
    def model(self) -> StoredModel:
        """The newest model."""
        return self._model

    def stored(self, version: int) -> StoredModel:
        """A version that is still kept; 0 = the newest."""
        return self._models.kept(version, self._model, self.core.history.digest_of(version))

    def watch(self, hosts: Sequence[str], have_version: int) -> Watcher:
        """Watches for a process that runs these hosts' tasks; if they are already working, it gets the model too."""
        watcher = self.watchers.add(hosts, have_version)
        if {host_of(node) for node in self.core.busy_nodes()} & set(hosts):
            watcher.offer(self._model)
        return watcher

    async def run(self) -> None:
        """Runs until the federation has ended or the learner stops; raises only failures that do not pass."""
        metrics.RUNNING.inc()
        try:
            while True:
                error = await self._life()
                if error is None:
                    return
                self._resumed.clear()
                while cause := passing(error):
                    await self._obstacle.wait_out(cause if self._disk_error is None else sentence_of(self._disk_error))
                    try:
                        self._restore()
                        break
                    except (OSError, FleetError) as again:
                        error = again
                else:
                    raise error
        finally:
            metrics.RUNNING.dec()

    def stop(self, reason: str) -> None:
        """Ends the federation after the current round, or immediately if it is paused."""
        if self.core.phase is not Phase.ENDED:
            self._handle(events.Stop(reason, at_once=bool(self._obstacle.paused)))

    def fail(self, reason: str) -> None:
        """Ends the federation immediately, as failed."""
        if self.core.phase is not Phase.ENDED:
            self._handle(events.Stop(reason, failed=True))

    def close(self) -> None:
        """Closes the files."""
        self.intake.close()
        self.watchers.close()
        self._journal.close()
        self._spool.close()

    async def ready(self) -> None:
        """Waits until a resumed federation knows its remaining work: an earlier update could make it do some of it
        twice.

        Raises Unavailable if that takes too long; the node tries again.
        """
        if self._resumed.is_set():
            return
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self._resumed.wait()
        except TimeoutError:
            raise Unavailable(f"the federation is paused: {self.obstacle}", reason="PAUSED") from None

    async def _life(self) -> BaseException | None:
        """Runs a life in its own task, so that a failed one leaves no cancellation behind; returns its error."""
        life = asyncio.get_running_loop().create_task(self._live())
        try:
            await asyncio.wait({life})
        finally:
            if not life.done():
                life.cancel()
                await asyncio.wait({life}, timeout=_STOP_SECONDS)
            found = life.exception() if life.done() and not life.cancelled() else None
        return found

    async def _live(self) -> None:
        if self.core.phase is Phase.ENDED:
            self._resumed.set()
            self._tidy()
            self.watchers.close()
            return
        name = f"federation-{self.federation_id}"
        dispatcher = Dispatcher(self._channel, name, self._tasks.take, self._obstacle.note_refusal)
        self._tasks.begin(dispatcher)
        if self._sums is not None:
            self._sums.made()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for nonce in await asyncio.to_thread(self._damaged):
                    self._handle(events.Damaged(nonce))
                self._perform(self.core.resume(self._timer.now()))
                self._resumed.set()
                loops = [dispatcher.run(), self._search.run(), self._timer.run(), self._end_life()]
                tasks = [group.create_task(loop) for loop in loops]
                await self._ended.wait()
                await self._tasks.withdraw_all()
                for task in tasks:
                    task.cancel()
            self._tidy()
        finally:
            self._group = None
            self._tasks.end()

    def _tidy(self) -> None:
        """An ended federation needs neither its updates nor its noise."""
        self._spool.shrink(0)
        (self._folder / NOISE_KEY).unlink(missing_ok=True)

    async def _end_life(self) -> None:
        """Ends a life when something outside it met a transient failure."""
        await self._interrupted.wait()
        if self._disk_error is not None:
            raise self._disk_error

    def _interrupt(self, error: OSError | MemoryError) -> Unavailable:
        """Ends this life; the caller raises the error that this returns."""
        self._resumed.clear()
        self._disk_error = error
        self._interrupted.set()
        return Unavailable(f"the federation is paused: {sentence_of(error)}", reason="PAUSED")

    def _restore(self) -> None:
        """Rebuilds memory from the journal. The core stays the same object, because other objects refer to it."""
        self._journal.reopen()
        self._rebuild()
        self._disk_error = None
        self._interrupted.clear()
        self._search.wanted.clear()

    def _rebuild(self) -> None:
        core = Rounds(self.config)
        self._replay(core)
        core.digest = core.digest or self._model.digest
        vars(self.core).update(vars(core))

    def _replay(self, core: Rounds) -> float:
        age, count = 0.0, 0
        for event, now in read_journal(self._folder / JOURNAL):
            core.handle(event, now)
            age, count = now, count + 1
        if not count and self._models.newest > 1:
            text = f"{self._folder / JOURNAL} is gone, and there are {self._models.newest} versions of the model"
            raise FailedPrecondition(f"{text}: put a whole copy in its place", reason=LOST)
        if count:
            log.info("federation_resumed", federation_id=self.federation_id, events=count, round=core.round)
        return age

    def _damaged(self) -> list[str]:
        """Nonces of accepted updates whose bytes in the spool have changed."""
        return [
            answer.nonce
            for answer in self.core.participants.kept()
            if self._spool.digest(answer.slot) != answer.stored_digest
        ]

    def _publish(self) -> None:
        if self.policies is not None:
            self.policies.publish(self._model.version, b"".join(self._model.chunks()))

    def _handle(self, event: Event) -> None:
        self._perform(self._record(event))

    def _record(self, event: Event) -> list[Action]:
        """Applies an event and journals it; returns the actions, none of which is performed before that."""
        if self._disk_error is not None:
            raise Unavailable(f"the federation is paused: {sentence_of(self._disk_error)}", reason="PAUSED")
        now = self._timer.now()
        line = encode(event, now)
        try:
            actions = self.core.handle(event, now)
            written = bool(actions) or not isinstance(event, events.Tick)
            if written:
                self._journal.append(event, line)
        except FleetError:
            # A refusal: nothing has changed.
            raise
        except (OSError, MemoryError) as error:
            raise self._interrupt(error) from error
        except Exception:
            # A defect may have left half a decision in memory that the journal does not have.
            self._undo()
            raise
        if written:
            self._obstacle.clear()
        self._timer.changed.set()
        if isinstance(event, events.Begin) and self._journal.long:
            self._compact(now)
        return actions

    def _undo(self) -> None:
        try:
            self._rebuild()
        except (OSError, MemoryError) as error:
            self._interrupt(error)

    def _compact(self, now: float) -> None:
        try:
            self._journal.compact(encode(events.Restored(state_of(self.core)), now))
        except OSError as error:
            log.warning("journal_not_compacted", federation_id=self.federation_id, cause=sentence_of(error))

    def _perform(self, actions: Sequence[Action]) -> None:
        """Between two lives only End is performed; the rounds repeat everything else when they resume."""
        for action in actions:
            match action:
                case events.End(state, reason):
                    log.info("federation_ended", federation_id=self.federation_id, state=state.value, reason=reason)
                    self._ended.set()
                    self.watchers.close()
                case _ if self._group is None:
                    continue
                case events.SeekNodes():
                    self._search.wanted.set()
                case events.Ask(assignments):
                    self._ask(assignments)
                case events.Prepare(step, assignments) if self._sums is not None:
                    self._sums.prepare(step, assignments)
                case events.Unmask(number, counted) if self._sums is not None:
                    self._sums.unmask(number, counted)
                case events.AskEvaluation(version, node_ids):
                    numbered = {node: self.core.number_of(node) for node in node_ids}
                    self._tasks.submit(evaluation_tasks(self.federation_id, self.config, version, numbered))
                    self._offer(node_ids)
                case events.Withdraw(node_ids):
                    self._spawn(self._tasks.withdraw(self._tasks.of_nodes(node_ids)))
                case events.Aggregate(number, counted):
                    self._spawn(self._aggregate(number, counted))

    def _offer(self, nodes: Iterable[str]) -> None:
        self.watchers.offer(map(host_of, nodes), self._model)

    def _ask(self, assignments: Sequence[Assignment]) -> None:
        masking = self.core.masking if self._sums is not None else None
        self._tasks.submit(fit_tasks(self.federation_id, self.config, self.schema.size, assignments, masking))
        self._offer(each.node_id for each in assignments)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts work as part of this life; between two lives it is dropped."""
        if self._group is not None:
            self._group.create_task(work)
        else:
            work.close()

    def _sum_is_ready(self, unmasking: "Unmasking", counted: Sequence[Counted]) -> None:
        self._spawn(self._aggregate_masked(unmasking, counted))

    async def _aggregate_masked(self, unmasking: "Unmasking", counted: Sequence[Counted]) -> None:
        assert self._sums is not None
        try:
            make = functools.partial(self._aggregator.aggregate_masked, self.core.version, counted, unmasking)
            await self._aggregate(unmasking.number, counted, make)
        except InvalidInput as error:
            self._handle(events.NotUnmasked(unmasking.number, f"the sum cannot be unmasked: {error.message}"))
            metrics.ROUNDS.labels(RoundState.ABANDONED.value).inc()
        finally:
            self._sums.made()

    async def _aggregate(
        self, number: int, counted: Sequence[Counted], make: Callable[[], Joined] | None = None
    ) -> None:
        base = self.core.version
        started = time.perf_counter()
        joined = await asyncio.to_thread(make or functools.partial(self._aggregator.aggregate, base, number, counted))
        model = joined.model
        shown = {**joined.metrics, "update/seconds": time.perf_counter() - started, **self.core.spending.metrics(base)}
        actions = self._record(events.Aggregated(model.version, model.digest, shown))
        if "privacy/epsilon" in shown:
            metrics.EPSILON.set(shown["privacy/epsilon"])
        # A version is announced only once the journal has it.
        self._model = model
        self._publish()
        self._perform(actions)
        if self.config.privacy.mode == "central":
            await asyncio.to_thread(self._aggregator.forget_noise, base)
        record = self.core.history[-1]
        metrics.ROUNDS.labels(RoundState.AGGREGATED.value).inc()
        metrics.ROUND_SECONDS.observe(record.seconds)
        log.info(
            "round_aggregated",
            federation_id=self.federation_id,
            round=number,
            version=model.version,
            updates=len(counted),
            seconds=round(record.seconds, 4),
        )
