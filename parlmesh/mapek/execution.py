"""Does what was planned: the lease, the action within its time, the effect measured, and a rollback where it failed."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from parlmesh.client import Outcome
from parlmesh.errors import FleetError

from .config import UNREACHABLE, ActionConfig, MapekConfig, RuleConfig, matches
from .fleet_actions import FleetAction
from .node.thresholds import is_beyond
from .planning.arbiter import Arbiter
from .types import Decision, NodeReport, Status


@dataclass(slots=True)
class Done:
    """How an action ended: done or not, and in words; refused says that nothing was touched."""

    success: bool
    detail: str
    refused: bool = False
    unknown: bool = False
    undo: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Executor:
    """Of one loop. Decisions are on disk before anything is sent."""

    config: MapekConfig
    owner: str
    arbiter: Arbiter
    ask: Callable[..., Awaitable[Outcome]]
    save: Callable[[Decision], Awaitable[None]]
    fleet: Mapping[str, FleetAction]
    clock: Callable[[], float]
    unmeasured: dict[str, list[tuple[Decision, float]]] = field(default_factory=dict)
    """Decisions whose effect the next reading of their node shows, with the value before."""

    async def perform(self, decision: Decision, rule: RuleConfig, report: NodeReport) -> None:
        """From the claim to the outcome."""
        refusal = self.arbiter.claim(decision.node, decision.action)
        if refusal:
            decision.reason = f"{decision.action} waits: {refusal}"
            return
        action = self.config.actions[decision.action]
        try:
            decision.status, decision.started = Status.STARTED, self.clock()
            await self.save(decision)
            done = await self._do(decision, action)
            if done.refused:
                decision.status, decision.reason = Status.HELD, done.detail
                self.arbiter.breaker(decision.action).give_back()
                return
            await self._judge(decision, action, done)
            decision.seconds = max(self.clock() - decision.started, 0.0)
            success = decision.status in (Status.WORKED, Status.DRY_RUN)
            self.arbiter.ended(decision.node, rule, decision.action, success, self.clock())
            before = report.metrics.get(decision.symptom.metric)
            if not decision.measured and before is not None:
                self.unmeasured.setdefault(decision.node, []).append((decision, before))
        finally:
            self.arbiter.release(decision.node, decision.action)

    def measured(self, node: str, metrics: Mapping[str, float], cycle: int) -> list[Decision]:
        """Completes decisions of earlier cycles with the first reading after them."""
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

    async def _do(self, decision: Decision, action: ActionConfig) -> Done:
        parameters = _filled(action.parameters, decision.node)
        dry = self.config.dry_run or action.kind == "dry_run"
        if not dry and action.kind in self.fleet:
            return await self._by_fleet(decision, action, parameters)
        if dry and decision.symptom.name == UNREACHABLE:
            return Done(True, "a dry run: nothing was done")
        said = {"instead_of": action.kind, **parameters} if dry and action.kind != "dry_run" else parameters
        return await self._by_node(decision, action, said, kind="dry_run" if dry else action.kind)

    async def _by_fleet(self, decision: Decision, action: ActionConfig, parameters: dict[str, Any]) -> Done:
        if decision.symptom.name != UNREACHABLE:
            lease = await self._by_node(decision, action, {}, kind="")
            if not lease.success:
                return lease
        try:
            async with asyncio.timeout(action.timeout_seconds):
                done = await self.fleet[action.kind].do(decision.node, parameters)
        except TimeoutError:
            return Done(False, f"not done within {action.timeout_seconds:g} s")
        except FleetError as error:
            return Done(False, error.message)
        return Done(True, done.detail, undo=done.undo)

    async def _by_node(
        self, decision: Decision, action: ActionConfig, parameters: dict[str, Any], *, kind: str, undo: bool = False
    ) -> Done:
        wanted = {
            "node": decision.node,
            "decision": decision.id,
            "loop": self.owner,
            "lease_seconds": self.config.lease_seconds,
            "action": kind,
            "parameters": parameters,
            "timeout_seconds": action.timeout_seconds,
            "undo": undo,
        }
        seconds = self.config.node_seconds + action.timeout_seconds
        outcome = await self.ask(self.config.kinds.execute, wanted, node=decision.node, seconds=seconds, once=True)
        answer = outcome.value
        if answer is None:
            told = outcome.error
            never_ran = told is not None and told.reason in ("INVALID_PARAMETERS", "HANDLER_ERROR", "QUEUE_TIMEOUT")
            return Done(False, f"{told}", unknown=not never_ran)
        if answer.get("refused"):
            return Done(False, str(answer["refused"])[:500], refused=True)
        return Done(bool(answer.get("done")), str(answer.get("detail", ""))[:500])

    async def _judge(self, decision: Decision, action: ActionConfig, done: Done) -> None:
        """The decision's status: by the action's own word, then by what is measured."""
        if self.config.dry_run or action.kind == "dry_run":
            decision.status = Status.DRY_RUN if done.success else Status.FAILED
            decision.error = "" if done.success else done.detail
            return
        if done.success and action.verify is None:
            decision.status = Status.WORKED
            return
        if done.success:
            better, decision.measured = await self._verified(decision, action)
            if better:
                decision.status = Status.WORKED
                return
            decision.error = f"it did not help: {decision.measured}"
        else:
            decision.error = done.detail
        decision.status = Status.UNKNOWN if done.unknown else Status.FAILED
        if action.rollback and not done.unknown:
            await self._roll_back(decision, action, done)

    async def _roll_back(self, decision: Decision, action: ActionConfig, done: Done) -> None:
        parameters = _filled(action.parameters, decision.node)
        if action.kind in self.fleet:
            if done.undo is None:
                return
            try:
                async with asyncio.timeout(action.timeout_seconds):
                    told = await self.fleet[action.kind].undo(decision.node, parameters, done.undo)
                undone = Done(True, told)
            except (FleetError, TimeoutError) as error:
                undone = Done(False, str(error) or "not undone in time")
        else:
            undone = await self._by_node(decision, action, parameters, kind=action.kind, undo=True)
        if undone.success:
            decision.status = Status.ROLLED_BACK
        decision.error += f"; rollback: {undone.detail}"

    async def _verified(self, decision: Decision, action: ActionConfig) -> tuple[bool, str]:
        """Reads the metric again, after the time to settle. No answer is no success."""
        verify = action.verify
        assert verify is not None
        await asyncio.sleep(verify.after_seconds)
        metric = verify.metric or decision.symptom.metric
        before = decision.symptom.value if metric == decision.symptom.metric else None
        parameters = {"node": decision.node, "probes": self.config.probes.model_dump(mode="json")}
        outcome = await self.ask(
            self.config.kinds.monitor, parameters, node=decision.node, seconds=self.config.node_seconds
        )
        value = ((outcome.value or {}).get("metrics") or {}).get(metric)
        first = f"{metric} {before:.4g} before, " if before is not None else f"{metric} "
        if not isinstance(value, (int, float)):
            return False, f"{first}unknown after"
        if verify.above is not None or verify.below is not None:
            good = (verify.above is None or value >= verify.above) and (verify.below is None or value <= verify.below)
        else:
            threshold = next((each for each in self.config.thresholds if matches(each.metric, metric)), None)
            good = not is_beyond(threshold, value) if threshold is not None else value < decision.symptom.value
        return good, f"{first}{value:.4g} after"


def _filled(parameters: Mapping[str, Any], node: str) -> dict[str, Any]:
    return {
        key: value.replace("{node}", node) if isinstance(value, str) else value for key, value in parameters.items()
    }
