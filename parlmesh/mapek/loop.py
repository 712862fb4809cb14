"""The loop: cycle after cycle over the nodes of a fleet, using only the client SDK."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from parlmesh.client import ActorInfo, ActorState, Outcome, PARLController, Placement, Priority, TaskRequest
from parlmesh.errors import FailedPrecondition, InvalidInput

from .config import MapekConfig
from .fleet_actions import fleet_actions
from .knowledge import Knowledge
from .node_calls import NodeCalls
from .node_cycle import Journey, Surroundings
from .phase_order import ORDERS
from .planned_action import Executor
from .planning.arbiter import Arbiter
from .planning.trained_planner import Policy
from .rollback import Rollback
from .types import CycleReport, Decision, Health

REMEMBERED_SECONDS = 3600.0
"""How long a node is still queried after its last actor has left."""


class MapekLoop:
    """Belongs to one event loop. Nodes and fleet keep working if it dies."""

    def __init__(
        self,
        controller: PARLController,
        config: MapekConfig,
        knowledge: Knowledge,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._controller = controller
        self._config = config
        self._knowledge = knowledge
        knowledge.own()
        self._clock = clock = clock or steady_clock()
        # A unique owner per instance: an older loop of the same name may still be alive and hold leases.
        self._instance = f"{config.name}-{secrets.token_hex(4)}"
        now = clock()
        self._arbiter = Arbiter(config, knowledge.last_actions(now), knowledge.breakers(config.breaker, now))
        self._policy = Policy.load(config.planner.policy) if config.planner.policy else None
        self._cycle = 0
        self._silent = knowledge.nodes(0.0)
        save = _Commits(knowledge).save
        calls = NodeCalls(config, self._instance, self._ask)
        self._rollback = Rollback(config, calls, fleet_actions(controller), save)
        self._arbiter.owing = lambda: self._rollback.owing
        self._executor = Executor(
            config, self._arbiter, self._ask, calls, self._rollback, save, clock, knowledge.under_way
        )

    async def run(self, stop: asyncio.Event, told: Callable[[CycleReport], None] = lambda report: None) -> int:
        """Runs cycles until `stop` is set and returns their number. After an overlong cycle the next starts
        immediately."""
        cycles = 0
        while not stop.is_set():
            began = asyncio.get_running_loop().time()
            told(await self.cycle())
            cycles += 1
            rest = self._config.interval_seconds - (asyncio.get_running_loop().time() - began)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(rest, 0.001))
        return cycles

    async def cycle(self, order: str = "pipelined") -> CycleReport:
        """One cycle over all nodes. `order` is for comparison: pipelined, barriers or sequential."""
        if order not in ORDERS:
            raise InvalidInput(f"order is {order!r}; it must be one of {', '.join(ORDERS)}")
        started, began = self._clock(), time.perf_counter()
        await self._executor.write_ends()
        # Decision ids contain the cycle number, so a cycle that could not be saved still uses up its number.
        number = self._cycle = max(await asyncio.to_thread(self._knowledge.next_cycle), self._cycle + 1)
        actors = await self._controller.list_actors()
        nodes = self._nodes(actors, started)
        self._arbiter.nodes = max(1, len(nodes))
        shared = Surroundings(
            config=self._config,
            cycle=number,
            ask=self._ask,
            arbiter=self._arbiter,
            knowledge=self._knowledge,
            executor=self._executor,
            clock=self._clock,
            instance=self._instance,
            contexts=_contexts(actors, self._config.planner.context),
            silent=dict(self._silent),
            policy=self._policy,
        )
        journeys = [Journey(node, shared) for node in nodes]
        owed = await asyncio.to_thread(self._knowledge.owed)
        await asyncio.gather(self._rollback.settle(owed), ORDERS[order](journeys))
        report = CycleReport(number, started, time.perf_counter() - began, [journey.report for journey in journeys])
        try:
            await asyncio.to_thread(self._remember, report)
        except FailedPrecondition as error:
            # Monitoring continues; this cycle exists only in its report.
            report.trouble = error.message
        return report

    def _nodes(self, actors: list[ActorInfo], now: float) -> list[str]:
        if self._config.nodes:
            return list(self._config.nodes)
        present = {actor.node_id for actor in actors}
        return sorted(present | set(self._knowledge.nodes(now - REMEMBERED_SECONDS)))

    def _remember(self, report: CycleReport) -> None:
        for node in report.nodes:
            unknown = node.health is Health.UNKNOWN and not node.metrics
            self._silent[node.node] = self._silent.get(node.node, 0) + 1 if unknown else 0
        late = [
            decision
            for node in report.nodes
            if node.metrics
            for decision in self._executor.measured(node.node, node.metrics, report.cycle)
        ]
        self._knowledge.save([*report.decisions, *late])
        self._knowledge.end_cycle(report, self._silent)
        self._knowledge.save_breakers(self._arbiter.breakers)

    async def _ask(
        self, kind: str, parameters: Mapping[str, Any], *, node: str = "", seconds: float, once: bool = False
    ) -> Outcome:
        request = TaskRequest(
            kind,
            parameters,
            priority=Priority.HIGH,
            placement=Placement(node_id=node),
            queue_timeout=self._config.node_seconds,
            run_timeout=seconds,
            max_attempts=1 if once else 2,
        )
        return (await self._controller.execute_parallel([request], timeout=seconds + 1.0))[0]


def steady_clock() -> Callable[[], float]:
    """Wall-clock time at the start plus monotonic time since, so that resetting the clock changes no cool-down."""
    began, since = time.time(), time.monotonic()
    return lambda: began + time.monotonic() - since


class _Commits:
    """Decisions saved at the same time share one commit."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._waiting: list[_Write] = []
        self._writing = asyncio.Lock()

    async def save(self, decision: Decision, *, owed: Mapping[str, Any] | None = None, settled: bool = False) -> None:
        """Returns once the decision is on disk, together with its owed rollback, or with that rollback settled."""
        write = _Write(decision, owed, settled, asyncio.get_running_loop().create_future())
        self._waiting.append(write)
        async with self._writing:
            if not write.done.done():
                batch, self._waiting = self._waiting, []
                try:
                    await asyncio.to_thread(
                        self._knowledge.save,
                        [each.decision for each in batch],
                        owed={each.decision.id: each.owed for each in batch if each.owed is not None},
                        settled=[each.decision.id for each in batch if each.settled],
                    )
                except BaseException as error:
                    for each in batch:
                        each.done.set_exception(error)
                else:
                    for each in batch:
                        each.done.set_result(None)
        await write.done


@dataclass(frozen=True, slots=True)
class _Write:
    decision: Decision
    owed: Mapping[str, Any] | None
    settled: bool
    done: asyncio.Future[None]


def _contexts(actors: list[ActorInfo], labels: tuple[str, ...]) -> dict[str, str]:
    """The values of the context labels, by node."""
    found: dict[str, str] = {}
    for actor in actors:
        if labels and actor.state is not ActorState.LOST:
            found[actor.node_id] = " ".join(f"{label}={actor.labels.get(label, '')}" for label in labels)
    return found
