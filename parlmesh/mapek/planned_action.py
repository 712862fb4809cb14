"""Carries out a planned action: takes the lease, acts within the time limit, measures the effect, undoes failures."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from parlmesh.client import Outcome
from parlmesh.errors import FailedPrecondition, FleetError

from .config import UNREACHABLE, ActionConfig, MapekConfig, RuleConfig, matches
from .node.thresholds import is_beyond
from .node_answers import Unusable, readings
from .node_calls import Done, NodeCalls
from .planning.arbiter import Arbiter
from .rollback import Rollback, filled
from .task_parameters import INSTEAD_OF
from .types import Decision, NodeReport, Status


@dataclass(slots=True)
class Executor:
    """The executor of one loop. A decision, and what undoing it needs, is on disk before anything is sent."""

    config: MapekConfig
    arbiter: Arbiter
    ask: Callable[..., Awaitable[Outcome]]
    nodes: NodeCalls
    rollback: Rollback
    save: Callable[..., Awaitable[None]]
    clock: Callable[[], float]
    under_way: set[str]
    """Decisions that are being carried out, or whose end is not saved yet."""
    unwritten: dict[str, tuple[Decision, bool]] = field(default_factory=dict)
    """Decisions whose end could not be saved, and whether their rollback is settled."""
    unmeasured: dict[str, list[tuple[Decision, float]]] = field(default_factory=dict)
    """Decisions whose effect will show in the node's next reading, with the value before."""

    async def perform(self, decision: Decision, rule: RuleConfig, report: NodeReport) -> None:
        """Carries out a decision, from the claim to the outcome."""
        refusal = self.arbiter.claim(decision.node, decision.action)
        if refusal:
            decision.reason = f"{decision.action} waits: {refusal}"
            return
        action = self.config.actions[decision.action]
        self.under_way.add(decision.id)
        try:
            decision.status, decision.started = Status.STARTED, self.clock()
            try:
                done, owed = await self._do(decision, action)
            except _Unrecorded as error:
                done, owed = Done(False, error.message, refused=True), None
            if done.refused:
                decision.status, decision.reason = Status.HELD, done.detail
                self.arbiter.breaker(decision.action).give_back()
                if owed is not None:
                    await self._end(decision, True)
                return
            settled = await self._judge(decision, action, done, owed)
            decision.seconds = max(self.clock() - decision.started, 0.0)
            success = decision.status in (Status.WORKED, Status.DRY_RUN)
            self.arbiter.ended(decision.node, rule, decision.action, success, self.clock())
            before = report.metrics.get(decision.symptom.metric)
            if not decision.measured and before is not None:
                self.unmeasured.setdefault(decision.node, []).append((decision, before))
            if owed is not None:
                await self._end(decision, settled)
        finally:
            if decision.id not in self.unwritten:
                self.under_way.discard(decision.id)
            self.arbiter.release(decision.node, decision.action)

    async def write_ends(self) -> None:
        """Retries saving ends that a full disk prevented; until then these decisions do not count as abandoned."""
        for decision, settled in list(self.unwritten.values()):
            await self._end(decision, settled)

    async def _end(self, decision: Decision, settled: bool) -> None:
        try:
            await self.save(decision, settled=settled)
        except FailedPrecondition:
            self.unwritten[decision.id] = decision, settled
        else:
            self.unwritten.pop(decision.id, None)
            self.under_way.discard(decision.id)

    def measured(self, node: str, metrics: Mapping[str, float], cycle: int) -> list[Decision]:
        """Completes decisions of earlier cycles with the first reading after the action."""
        waiting = self.unmeasured.pop(node, [])
        fresh = [each for each in waiting if each[0].cycle == cycle]
        if fresh:
            self.unmeasured[node] = fresh
        completed = []
        for decision, before in waiting:
            if decision.cycle != cycle:
                now = metrics.get(decision.symptom.metric)
                after = f"{now:.4g}" if now is not None else "unknown"
                decision.measured = f"{decision.symptom.metric} {before:.4g} before, {after} one cycle later"
                completed.append(decision)
        return completed

    async def _do(self, decision: Decision, action: ActionConfig) -> tuple[Done, dict[str, Any] | None]:
        """How the action ended, and the rollback owed if it must be undone."""
        parameters = filled(action.parameters, decision.node)
        if self.config.dry_run or action.kind == "dry_run":
            await self._record(decision, None)
            if decision.symptom.name == UNREACHABLE:
                return Done(True, "a dry run: nothing was done"), None
            # The node cannot rehearse an action of the scheduler or a cluster.
            word = "by_fleet_instead_of" if action.kind in self.rollback.fleet else INSTEAD_OF
            said = {word: action.kind, **parameters} if action.kind != "dry_run" else parameters
            return await self.nodes.do(decision, action, said, "dry_run"), None
        if action.kind in self.rollback.fleet:
            return await self._by_fleet(decision, action, parameters)
        owed = self.rollback.owed(decision, action, None)
        await self._record(decision, owed)
        return await self.nodes.do(decision, action, parameters, action.kind), owed

    async def _by_fleet(
        self, decision: Decision, action: ActionConfig, parameters: dict[str, Any]
    ) -> tuple[Done, dict[str, Any] | None]:
        if decision.symptom.name != UNREACHABLE:
            lease = await self.nodes.do(decision, action, {}, "")
            if not lease.success:
                return lease, None
        effector, owed = self.rollback.fleet[action.kind], None
        try:
            async with asyncio.timeout(action.timeout_seconds):
                before = await effector.before(decision.node, parameters)
                owed = self.rollback.owed(decision, action, before)
                await self._record(decision, owed)
                return Done(True, await effector.do(decision.node, parameters, before)), owed
        except TimeoutError:
            return Done(False, f"not done within {action.timeout_seconds:g} s"), owed
        except _Unrecorded:
            raise
        except FleetError as error:
            return Done(False, error.message), owed

    async def _record(self, decision: Decision, owed: Mapping[str, Any] | None) -> None:
        """Saves the decision first; an action that cannot be recorded is not taken."""
        try:
            await self.save(decision, owed=owed)
        except FailedPrecondition as error:
            raise _Unrecorded(f"no action is taken without a record: {error.message}") from error

    async def _judge(
        self, decision: Decision, action: ActionConfig, done: Done, owed: Mapping[str, Any] | None
    ) -> bool:
        """Sets the decision's status from the action's answer and the measurement; True = no rollback is owed."""
        if self.config.dry_run or action.kind == "dry_run":
            decision.status = Status.DRY_RUN if done.success else Status.FAILED
            decision.error = "" if done.success else done.detail
            return True
        good = done.success
        if good and action.verify is not None:
            good, decision.measured = await self._verified(decision, action)
        if good:
            return await self._confirmed(decision, action, done)
        decision.error = f"it did not help: {decision.measured}" if done.success else done.detail
        decision.status = Status.UNKNOWN if done.unknown else Status.FAILED
        if owed is None:
            return True
        if done.unknown:
            decision.error += "; it will be undone as soon as the node answers"
            return False
        undone = await self.rollback.undo(decision, action, owed)
        if undone.success:
            decision.status = Status.ROLLED_BACK
        decision.error += f"; rollback: {undone.detail}"
        return not (undone.unknown or undone.refused or undone.pending)

    async def _confirmed(self, decision: Decision, action: ActionConfig, done: Done) -> bool:
        decision.status = Status.WORKED
        if not done.unconfirmed:
            return True
        confirmed = await self.nodes.confirm(decision, action)
        if confirmed.success:
            return True
        decision.status = Status.UNKNOWN
        decision.error = f"it helped, but was not confirmed in time and will be undone: {confirmed.detail}"
        return False

    async def _verified(self, decision: Decision, action: ActionConfig) -> tuple[bool, str]:
        """Reads the metric again after the settling time. A missing answer is not a success."""
        verify = action.verify
        assert verify is not None
        await asyncio.sleep(verify.after_seconds)
        metric = verify.metric or decision.symptom.metric
        before = decision.symptom.value if metric == decision.symptom.metric else None
        parameters = {"node": decision.node, "probes": self.config.probes.model_dump(mode="json")}
        outcome = await self.ask(
            self.config.kinds.monitor, parameters, node=decision.node, seconds=self.config.node_seconds
        )
        first = f"{metric} {before:.4g} before, " if before is not None else f"{metric} "
        try:
            value = readings(outcome.value or {})[0].get(metric)
        except Unusable as error:
            return False, f"{first}unknown after: {error}"
        if value is None:
            return False, f"{first}unknown after"
        if verify.above is not None or verify.below is not None:
            good = (verify.above is None or value >= verify.above) and (verify.below is None or value <= verify.below)
        else:
            threshold = next((each for each in self.config.thresholds if matches(each.metric, metric)), None)
            good = not is_beyond(threshold, value) if threshold is not None else value < decision.symptom.value
        return good, f"{first}{value:.4g} after"


class _Unrecorded(FailedPrecondition):
    """The knowledge cannot be written."""
