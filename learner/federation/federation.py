"""One federation at work: performs what the rounds decide, keeps it on disk, and goes on after a restart."""

import asyncio
import functools
import json
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from parlmesh.errors import NotFound
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.learning import FirstModel
from parlmesh.federation.privacy import epsilon
from parlmesh.federation.schema import ModelSchema
from parlmesh.federation.virtual_nodes import host_of
from parlmesh.telemetry import get_logger
from parlmesh.v1 import task_pb2 as pb

from ..dispatch import Dispatcher
from ..registry import PolicyRegistry
from . import events, metrics
from .aggregation import Aggregator
from .events import Action, Event
from .gate import finite_metrics
from .journal import Journal, read_journal
from .models import ModelFiles, StoredModel
from .reception import Reception
from .records import RoundState
from .requests import EVALUATE, NodesTask, evaluation_tasks, failures_in, fit_tasks, judgements_in
from .rounds import Phase, Rounds
from .spool import Spool
from .watching import Watcher, Watchers

log = get_logger("parlmesh.learner")

# How long a list of connected nodes is good for the next round.
_NODES_SECONDS = 1.0
_SEEK_SECONDS = 0.1
_ABOUT = "federation.json"

ListNodes = Callable[[FederationConfig], Awaitable[Sequence[str]]]


class Federation:
    """Lives on the event loop; only models are made elsewhere."""

    def __init__(self, folder: Path, channel: grpc.aio.Channel, list_nodes: ListNodes) -> None:
        about = json.loads((folder / _ABOUT).read_bytes())
        self.federation_id: str = about["federation_id"]
        self.created: float = about["created"]
        self.config = FederationConfig.model_validate(about["config"])
        self.schema = ModelSchema.from_list(about["schema"])
        self.core = Rounds(self.config)
        self._folder = folder
        self._list_nodes = list_nodes
        self._models = ModelFiles(folder / "models", self.schema, about["metadata"])
        self._spool = Spool(folder / "updates.bin", self.schema.size)
        self.reception = Reception(self.federation_id, self.core, self.schema, self._spool, self._handle)
        self.watchers = Watchers()
        self._aggregator = Aggregator(self.config, self._models, self._spool, folder, bytes.fromhex(about["secret"]))
        self._age, self._actions = self._replay()
        self._born = time.monotonic()
        self._journal = Journal(folder / "journal.jsonl")
        self._dispatcher = Dispatcher(channel, f"federation-{self.federation_id}", self._outcome)
        self._tasks: dict[str, NodesTask] = {}
        self._seeking, self._changed, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._resumed = asyncio.Event()
        self._nodes: Sequence[str] = ()
        self._nodes_until = 0.0
        self._group: asyncio.TaskGroup | None = None
        self._model = self._load_newest()
        # A model that is a policy can be acted with, as any run's.
        self.policies = PolicyRegistry(self.federation_id) if "policy" in about["metadata"] else None
        self._publish()

    @staticmethod
    def create(folder: Path, federation_id: str, config: FederationConfig, first: FirstModel) -> None:
        """Writes down a new federation with its first model; InvalidInput when the model cannot be federated."""
        schema = ModelSchema.of(first.tensors, first.rules)
        partial = folder.with_name(f".partial-{folder.name}")
        partial.mkdir(parents=True)
        metadata = {"federation": federation_id, **first.metadata}
        ModelFiles(partial / "models", schema, metadata).first(first.tensors)
        about = {
            "federation_id": federation_id,
            "created": time.time(),
            "config": config.model_dump(mode="json"),
            "schema": schema.to_list(),
            "metadata": metadata,
            "secret": secrets.token_hex(16),
        }
        (partial / _ABOUT).write_text(json.dumps(about, indent=2))
        partial.rename(folder)

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
        """Until the federation has ended or the learner stops."""
        if self.core.phase is Phase.ENDED:
            self._resumed.set()
            self.watchers.close()
            return
        metrics.RUNNING.inc()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for nonce in await asyncio.to_thread(self._damaged):
                    self._handle(events.Damaged(nonce))
                self._perform(self.core.resume(self._now()))
                self._resumed.set()
                loops = [self._dispatcher.run(), self._seek(), self._watch_time()]
                tasks = [group.create_task(loop) for loop in loops]
                await self._ended.wait()
                await self._withdraw(list(self._tasks))
                for task in tasks:
                    task.cancel()
        finally:
            self._group = None
            metrics.RUNNING.dec()

    def stop(self, reason: str) -> None:
        """Ends after the round in hand."""
        if self.core.phase is not Phase.ENDED:
            self._handle(events.Stop(reason))

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
        """Until a resumed federation knows what is left to do: before that, an update could have it done twice."""
        await self._resumed.wait()

    def _replay(self) -> tuple[float, int]:
        age, count = 0.0, 0
        for event, now in read_journal(self._folder / "journal.jsonl"):
            self.core.handle(event, now)
            age, count = now, count + 1
        if count:
            log.info("federation_resumed", federation_id=self.federation_id, events=count, round=self.core.round)
        return age, count

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
        now = self._now()
        actions = self.core.handle(event, now)
        if actions or not isinstance(event, events.Tick):
            self._journal.append(event, now)
        self._perform(actions)
        self._changed.set()

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case events.SeekNodes():
                    self._seeking.set()
                case events.Ask(assignments):
                    self._submit(fit_tasks(self.federation_id, self.config, self.schema.size, assignments))
                    self._offer(each.node_id for each in assignments)
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
                case events.End(state, reason):
                    log.info("federation_ended", federation_id=self.federation_id, state=state.value, reason=reason)
                    self._ended.set()
                    self.watchers.close()

    def _offer(self, nodes: Iterable[str]) -> None:
        self.watchers.offer(map(host_of, nodes), self._model)

    def _submit(self, tasks: Sequence[NodesTask]) -> None:
        names = self._dispatcher.submit([task.spec for task in tasks])
        self._tasks.update(zip(names, tasks, strict=True))

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # A federation that a defect ended has no loops any more: its tasks end by their deadlines.
        if self._group is not None:
            self._group.create_task(work())

    async def _aggregate(self, number: int, counted: Sequence[Any]) -> None:
        base = self.core.version
        started = time.perf_counter()
        joined = await asyncio.to_thread(self._aggregator.aggregate, base, number, counted)
        model = joined.model
        shown = {**joined.metrics, "update/seconds": time.perf_counter() - started, **await self._privacy()}
        self._model = model
        self._publish()
        self._handle(events.Aggregated(model.version, model.digest, shown))
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
        budget = self.config.privacy.epsilon_budget
        if budget and shown["privacy/next_epsilon"] > budget:
            self._handle(events.Stop(f"another round would give away more than the budget of epsilon {budget:g}"))

    async def _privacy(self) -> dict[str, float]:
        privacy = self.config.privacy
        if privacy.mode == "none":
            return {}
        rounds = self.core.aggregated + 1
        spend = functools.partial(epsilon, privacy.noise_multiplier, delta=privacy.delta)
        spent, more = await asyncio.to_thread(lambda: (spend(rounds=rounds), spend(rounds=rounds + 1)))
        metrics.EPSILON.set(spent)
        shown = {"privacy/epsilon": spent, "privacy/delta": privacy.delta, "privacy/next_epsilon": more}
        return {name: value for name, value in shown.items() if math.isfinite(value)}

    async def _withdraw(self, task_ids: Sequence[str]) -> None:
        for task_id in task_ids:
            self._tasks.pop(task_id, None)
        if task_ids:
            await self._dispatcher.cancel(list(task_ids))

    def _outcome(self, outcome: pb.Outcome) -> None:
        task = self._tasks.pop(outcome.task_id, None)
        if task is None:
            return
        succeeded = outcome.state == pb.TASK_STATE_SUCCEEDED
        if task.spec.kind == EVALUATE:
            self._judged(task, judgements_in(outcome.result) if succeeded else {})
            return
        failure = f"{outcome.failure.reason}: {outcome.failure.message}"
        failed = failures_in(outcome.result) if succeeded else dict.fromkeys(task.nodes, failure)
        for node in task.nodes:
            if node in failed:
                self._handle(events.TaskFailed(node, task.number, failed[node]))

    def _judged(self, task: NodesTask, judged: Mapping[str, tuple[int, dict[str, float]]]) -> None:
        for node in task.nodes:
            if task.number == self.core.version:
                samples, found = judged.get(node, (0, {}))
                self._handle(events.Evaluated(node, samples, finite_metrics(found)))

    async def _seek(self) -> None:
        """Begins a round as soon as enough nodes are there; a buffer takes up nodes that come later."""
        while True:
            try:
                async with asyncio.timeout(_NODES_SECONDS if self.config.buffer_size else None):
                    await self._seeking.wait()
            except TimeoutError:
                if self.core.phase is not Phase.COLLECTING:
                    continue
            if time.monotonic() >= self._nodes_until or len(self._nodes) < self.config.selection.min_nodes:
                self._nodes = await self._list_nodes(self.config)
                self._nodes_until = time.monotonic() + _NODES_SECONDS
            if len(self._nodes) < self.config.selection.min_nodes:
                await asyncio.sleep(_SEEK_SECONDS)
                continue
            self._seeking.clear()
            self._handle(events.Begin(tuple(self._nodes), secrets.token_hex(16), time.time()))

    async def _watch_time(self) -> None:
        """Deadlines are a timer's business: a round must close also when nobody says anything any more."""
        while True:
            self._changed.clear()
            left = self.core.deadline - self._now()
            timed = self.core.phase in (Phase.WAITING, Phase.COLLECTING, Phase.EVALUATING)
            if timed and left <= 0.0:
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
