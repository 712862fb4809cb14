"""One federation at work: performs what the rounds decide, keeps it on disk, and goes on after a restart.

A cause that passes ends a life of the federation, not the federation: memory is rebuilt from the journal, nodes are
asked again with the same nonces, and the next life goes on as after a restart of the learner.
"""

import asyncio
import functools
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio

from parlmesh.errors import FleetError, InvalidInput, NotFound, Unavailable
from parlmesh.failures import told_in_one_line
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.virtual_nodes import host_of
from parlmesh.rpc import Backoff
from parlmesh.telemetry import get_logger
from parlmesh.v1 import task_pb2 as pb

from ..policies.registry import PolicyRegistry
from ..sources.dispatch import Dispatcher
from . import about as about_files
from . import metrics
from .journal import Journal, encode, read_journal
from .models import ModelFiles, StoredModel
from .nodes import NodesFound
from .noise_key import NOISE_KEY
from .rules import events
from .rules.events import Action, Event
from .rules.records import LONGEST_MESSAGE, Counted, RoundState
from .rules.rounds import Phase, Rounds
from .rules.snapshot import state_of
from .tasks import EVALUATE, NodesTask, evaluation_tasks, failures_in, fit_tasks, judgements_in
from .troubles import passing, sentence_of
from .updates.aggregation import Aggregator, Joined
from .updates.intake import Reception
from .updates.spool import Spool
from .watches import Watcher, Watchers

if TYPE_CHECKING:
    from .masking.sums import SecureSums
    from .masking.unmasking import Unmasking

log = get_logger("parlmesh.learner")

# How long a list of connected nodes is good for the next round.
_NODES_SECONDS = 1.0
_SEEK_SECONDS = 0.1
# Between two lives; the longest pause is also the longest that a cause that has gone is waited for.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_STOP_SECONDS = 10.0
_READY_SECONDS = 10.0
# The scheduler's word for a task that it has lost, and for one that no actor can run at the moment.
_ASK_AGAIN = ("TASK_LOST", "UNKNOWN_KIND")

_TIMED = (Phase.WAITING, Phase.PREPARING, Phase.COLLECTING, Phase.UNMASKING, Phase.EVALUATING)

ListNodes = Callable[[FederationConfig], Awaitable[NodesFound]]


class Federation:
    """Lives on the event loop; only models are made elsewhere."""

    def __init__(self, folder: Path, channel: grpc.aio.Channel, list_nodes: ListNodes) -> None:
        about = about_files.read(folder)
        self.federation_id, self.created = about.federation_id, about.created
        self.config, self.schema = about.config, about.schema
        self.core = Rounds(self.config)
        # Why it does not go on at present, and why its tasks do not; empty while they do.
        self._paused, self._obstacle = "", ""
        self._folder = folder
        self._channel = channel
        self._list_nodes = list_nodes
        self._models = ModelFiles(folder / "models", self.schema, about.metadata)
        self._age = self._replay(self.core)
        self._born = time.monotonic()
        self._journal = Journal(folder / "journal.jsonl")
        self._model = self._load_newest()
        # A masked update has its weight as one more word.
        self._spool = Spool(folder / "updates.bin", self.schema.size + self.config.secure.enabled)
        self.reception = Reception(self.federation_id, self.core, self.schema, self._spool, self._handle, self._stumble)
        self.watchers = Watchers()
        self._aggregator = Aggregator(self.config, self._models, self._spool, folder)
        self._sums: SecureSums | None = None
        if self.config.secure.enabled:
            # Needs a package that other federations do not.
            from .masking import sums

            self._sums = sums.SecureSums(
                self.federation_id, self.config, self.core, self._handle, self._submit, self._sum_is_ready
            )
        self._tasks: dict[str, NodesTask] = {}
        self._seeking, self._changed, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._resumed = asyncio.Event()
        self._found = NodesFound()
        self._nodes_until = 0.0
        self._dispatcher: Dispatcher | None = None
        self._group: asyncio.TaskGroup | None = None
        # Set while memory and journal may be apart: nothing may happen before one is made from the other.
        self._torn: OSError | None = None
        self._fallen = asyncio.Event()
        # A model that is a policy can be acted with, as any run's.
        self.policies = PolicyRegistry(self.federation_id) if "policy" in about.metadata else None
        self._publish()

    @property
    def trouble(self) -> str:
        """What it waits for; empty while it goes on."""
        return self._paused or self._obstacle

    @property
    def model(self) -> StoredModel:
        """The newest model."""
        return self._model

    def stored(self, version: int) -> StoredModel:
        """A version that is still kept; 0 = the newest."""
        if version in (0, self._model.version):
            return self._model
        try:
            return self._models.load(version)
        except FileNotFoundError:
            text = f"model version {version} is not kept; the newest is {self._model.version}"
            raise NotFound(text, reason="MODEL_VERSION") from None

    def watch(self, hosts: Sequence[str], have_version: int) -> Watcher:
        """For a process whose tasks go to these hosts. What they were asked before it came is owed to it too."""
        watcher = self.watchers.add(hosts, have_version)
        if {host_of(node) for node in self.core.busy_nodes()} & set(hosts):
            watcher.offer(self._model)
        return watcher

    async def run(self) -> None:
        """Until the federation has ended or the learner stops; raises only what is the federation's own fault."""
        backoff = Backoff(first=_SHORTEST_PAUSE, limit=_LONGEST_PAUSE)
        metrics.RUNNING.inc()
        try:
            while True:
                error = await self._life()
                if error is None:
                    return
                self._resumed.clear()
                while cause := passing(error):
                    self._pause(cause if self._torn is None else sentence_of(self._torn))
                    await asyncio.sleep(_SHORTEST_PAUSE + backoff.next())
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
        """Ends after the round in hand, or at once when it is paused."""
        if self.core.phase is not Phase.ENDED:
            self._handle(events.Stop(reason, at_once=bool(self._paused)))

    def fail(self, reason: str) -> None:
        """Ends at once."""
        if self.core.phase is not Phase.ENDED:
            self._handle(events.Stop(reason, failed=True))

    def close(self) -> None:
        """Lets go of the files."""
        self.reception.close()
        self.watchers.close()
        self._journal.close()
        self._spool.close()

    async def ready(self) -> None:
        """Until a resumed federation knows what is left to do: before that, an update could have it done twice.

        Unavailable when that takes too long: the node comes again.
        """
        if self._resumed.is_set():
            return
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self._resumed.wait()
        except TimeoutError:
            raise Unavailable(f"the federation is paused: {self.trouble}", reason="PAUSED") from None

    async def _life(self) -> BaseException | None:
        """In a task of its own, so that one that failed leaves no cancellation behind. The error that ended it."""
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
        self._dispatcher = Dispatcher(self._channel, name, self._outcome, self._held_up)
        self._tasks.clear()
        if self._sums is not None:
            self._sums.made()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for nonce in await asyncio.to_thread(self._damaged):
                    self._handle(events.Damaged(nonce))
                self._perform(self.core.resume(self._now()))
                self._resumed.set()
                loops = [self._dispatcher.run(), self._seek(), self._watch_time(), self._fall()]
                tasks = [group.create_task(loop) for loop in loops]
                await self._ended.wait()
                await self._withdraw(list(self._tasks))
                for task in tasks:
                    task.cancel()
            self._tidy()
        finally:
            self._group = None
            self._dispatcher = None

    def _tidy(self) -> None:
        """An ended federation needs neither its updates nor its noise."""
        self._spool.shrink(0)
        (self._folder / NOISE_KEY).unlink(missing_ok=True)

    async def _fall(self) -> None:
        """Ends a life when somebody outside of it met a passing cause."""
        await self._fallen.wait()
        if self._torn is not None:
            raise self._torn

    def _pause(self, cause: str) -> None:
        if self._paused != cause:
            log.warning("federation_paused", federation_id=self.federation_id, cause=cause)
            metrics.PAUSES.inc()
        self._paused = cause

    def _clear(self) -> None:
        if self._paused:
            log.info("federation_goes_on", federation_id=self.federation_id)
        self._paused = ""

    def _held_up(self, obstacle: str) -> None:
        """By the scheduler; what it refuses today it may take tomorrow."""
        self._obstacle = obstacle

    def _stumble(self, error: OSError) -> Unavailable:
        """Ends this life; the caller raises what it is given."""
        self._resumed.clear()
        self._torn = error
        self._fallen.set()
        return Unavailable(f"the federation is paused: {sentence_of(error)}", reason="PAUSED")

    def _restore(self) -> None:
        """Memory as the journal has it. The core stays the same object: others know it."""
        self._journal.reopen()
        core = Rounds(self.config)
        self._replay(core)
        core.digest = core.digest or self._model.digest
        vars(self.core).update(vars(core))
        self._torn = None
        self._fallen.clear()
        self._seeking.clear()

    def _replay(self, core: Rounds) -> float:
        age, count = 0.0, 0
        for event, now in read_journal(self._folder / "journal.jsonl"):
            core.handle(event, now)
            age, count = now, count + 1
        if count:
            log.info("federation_resumed", federation_id=self.federation_id, events=count, round=core.round)
        return age

    def _damaged(self) -> list[str]:
        """Updates that are not in the spool as they were accepted."""
        return [
            answer.nonce
            for answer in self.core.kept_answers()
            if self._spool.digest(answer.slot) != answer.stored_digest
        ]

    def _load_newest(self) -> StoredModel:
        model = self._models.load(self.core.version)
        if self.core.digest and model.digest != self.core.digest:
            raise NotFound(
                f"model version {model.version} of {self.federation_id} is damaged on disk", reason="MODEL_DAMAGED"
            )
        self.core.digest = model.digest
        return model

    def _publish(self) -> None:
        if self.policies is not None:
            self.policies.publish(self._model.version, b"".join(self._model.chunks()))

    def _now(self) -> float:
        """Age of the federation in seconds, the time between two lives of the learner left out."""
        return self._age + time.monotonic() - self._born

    def _handle(self, event: Event) -> None:
        self._perform(self._record(event))

    def _record(self, event: Event) -> list[Action]:
        """What is to be done about it, which nobody is told before the event is on disk."""
        if self._torn is not None:
            raise Unavailable(f"the federation is paused: {sentence_of(self._torn)}", reason="PAUSED")
        now = self._now()
        line = encode(event, now)
        actions = self.core.handle(event, now)
        if actions or not isinstance(event, events.Tick):
            try:
                self._journal.append(event, line)
            except OSError as error:
                raise self._stumble(error) from error
            self._clear()
        self._changed.set()
        if isinstance(event, events.Begin) and self._journal.long:
            self._compact(now)
        return actions

    def _compact(self, now: float) -> None:
        try:
            self._journal.compact(encode(events.Restored(state_of(self.core)), now))
        except OSError as error:
            log.warning("journal_not_compacted", federation_id=self.federation_id, cause=sentence_of(error))

    def _perform(self, actions: Sequence[Action]) -> None:
        """Between two lives only the end is performed: all else is told again by the rounds when they resume."""
        for action in actions:
            match action:
                case events.End(state, reason):
                    log.info("federation_ended", federation_id=self.federation_id, state=state.value, reason=reason)
                    self._ended.set()
                    self.watchers.close()
                case _ if self._group is None:
                    continue
                case events.SeekNodes():
                    self._seeking.set()
                case events.Ask(assignments):
                    masking = self.core.masking if self._sums is not None else None
                    self._submit(fit_tasks(self.federation_id, self.config, self.schema.size, assignments, masking))
                    self._offer(each.node_id for each in assignments)
                case events.Prepare(step, assignments) if self._sums is not None:
                    self._sums.prepare(step, assignments)
                case events.Unmask(number, counted) if self._sums is not None:
                    self._sums.unmask(number, counted)
                case events.AskEvaluation(version, node_ids):
                    numbered = {node: self.core.number_of(node) for node in node_ids}
                    self._submit(evaluation_tasks(self.federation_id, self.config, version, numbered))
                    self._offer(node_ids)
                case events.Withdraw(node_ids):
                    unwanted = set(node_ids)
                    names = [name for name, task in self._tasks.items() if unwanted & set(task.nodes)]
                    self._spawn(functools.partial(self._withdraw, names))
                case events.Aggregate(number, counted):
                    self._spawn(functools.partial(self._aggregate, number, counted))

    def _offer(self, nodes: Iterable[str]) -> None:
        self.watchers.offer(map(host_of, nodes), self._model)

    def _submit(self, tasks: Sequence[NodesTask]) -> None:
        if self._dispatcher is not None:
            names = self._dispatcher.submit([task.spec for task in tasks])
            self._tasks.update(zip(names, tasks, strict=True))

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._group is not None:
            self._group.create_task(work())

    def _sum_is_ready(self, unmasking: "Unmasking", counted: Sequence[Counted]) -> None:
        self._spawn(functools.partial(self._aggregate_masked, unmasking, counted))

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
        # Nobody sees a version before it is written down that there is one.
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

    async def _withdraw(self, task_ids: Sequence[str]) -> None:
        for task_id in task_ids:
            self._tasks.pop(task_id, None)
        if task_ids and self._dispatcher is not None:
            await self._dispatcher.cancel(list(task_ids))

    def _outcome(self, outcome: pb.Outcome) -> None:
        task = self._tasks.pop(outcome.task_id, None)
        if task is None:
            return
        succeeded = outcome.state == pb.TASK_STATE_SUCCEEDED
        if not succeeded and outcome.failure.reason in _ASK_AGAIN and task.step:
            self._spawn(functools.partial(self._prepare_again, task, outcome.failure.reason))
            return
        if task.step and self._sums is not None:
            self._sums.outcome(task, outcome)
            return
        if task.spec.kind == EVALUATE:
            silent = [events.Evaluated(node, 0, {}) for node in task.nodes]
            self._judged(task, judgements_in(outcome.result, task.nodes) if succeeded else silent)
            return
        if not succeeded and outcome.failure.reason in _ASK_AGAIN:
            self._spawn(functools.partial(self._ask_again, task, outcome.failure.reason))
            return
        failure = told_in_one_line(f"{outcome.failure.reason}: {outcome.failure.message}", LONGEST_MESSAGE)
        failed = failures_in(outcome.result, task.nodes) if succeeded else dict.fromkeys(task.nodes, failure)
        for node in task.nodes:
            nonce = task.nonces[node]
            if node in failed:
                self._handle(events.TaskFailed(node, task.number, failed[node], nonce))
            elif self.core.waits_for(node, nonce):
                # The receipt of an update comes before the end of its task.
                self._handle(events.TaskFailed(node, task.number, "BAD_ANSWER: no update came", nonce, bad=True))

    async def _ask_again(self, task: NodesTask, reason: str) -> None:
        """The scheduler's trouble is not the node's: it is asked for the same update until the round closes."""
        self._pause(f"the scheduler answers {reason} to a task of {len(task.nodes)} nodes")
        await asyncio.sleep(_NODES_SECONDS)
        open_ = [self.core.assignments[node] for node in task.nodes if self.core.waits_for(node, task.nonces[node])]
        if open_:
            self._perform([events.Ask(tuple(open_))])

    async def _prepare_again(self, task: NodesTask, reason: str) -> None:
        """As `_ask_again`; nodes answer the same step in the same way, and one that is over is not looked at."""
        self._pause(f"the scheduler answers {reason} to a task of {len(task.nodes)} nodes")
        await asyncio.sleep(_NODES_SECONDS)
        if task.number == self.core.round:
            self._submit([task])

    def _judged(self, task: NodesTask, judged: Sequence[events.Evaluated]) -> None:
        if task.number == self.core.version:
            for event in judged:
                self._handle(event)

    async def _seek(self) -> None:
        """Begins a round as soon as enough nodes are there; a buffer takes up nodes that come later."""
        while True:
            try:
                async with asyncio.timeout(_NODES_SECONDS if self.config.buffer_size else None):
                    await self._seeking.wait()
            except TimeoutError:
                if self.core.phase is not Phase.COLLECTING:
                    continue
            least = self.config.selection.min_nodes
            if time.monotonic() >= self._nodes_until or len(self._found.nodes) < least:
                if not await self._look():
                    await asyncio.sleep(_SEEK_SECONDS)
                    continue
                self._nodes_until = time.monotonic() + _NODES_SECONDS
            if len(self._found.nodes) < least:
                self._wait_for_nodes(least)
                await asyncio.sleep(_SEEK_SECONDS)
                continue
            self._clear()
            self._seeking.clear()
            if self.core.phase is Phase.WAITING or self.core.idle(self._found.nodes):
                self._handle(events.Begin(self._found.nodes, secrets.token_hex(16), time.time()))

    def _wait_for_nodes(self, least: int) -> None:
        text = f"{len(self._found.nodes)} of {least} nodes are connected"
        self._pause("; ".join(filter(None, [text, self._found.sentence()])))

    async def _look(self) -> bool:
        """Asks for the connected nodes; False when the scheduler does not say."""
        try:
            self._found = await self._list_nodes(self.config)
        except FleetError as error:
            self._pause(f"the scheduler does not say which nodes are there: {error.message}")
            return False
        return True

    async def _watch_time(self) -> None:
        """Deadlines are a timer's business: a round must close also when nobody says anything any more."""
        while True:
            self._changed.clear()
            left = self.core.deadline - self._now()
            making = self.core.phase is Phase.UNMASKING and self._sums is not None and self._sums.making
            timed = self.core.phase in _TIMED and not making
            if timed and left <= 0.0:
                if self.core.would_suffer and (self._obstacle or not await self._look()):
                    # Without a scheduler no node can answer: that is not counted against anybody.
                    self.core.postpone(self._now())
                    continue
                before = self.core.history[-1].state if self.core.history else None
                self._handle(events.Tick())
                if self.core.history and before != self.core.history[-1].state:
                    metrics.ROUNDS.labels(self.core.history[-1].state.value).inc()
                continue
            try:
                async with asyncio.timeout(max(0.001, left) if timed else None):
                    await self._changed.wait()
            except TimeoutError:
                continue
