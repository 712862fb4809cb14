"""One node's path through a cycle: monitor, analyse, plan and execute, each after the previous one has answered."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

from parlmesh.client import Outcome
from parlmesh.errors import FleetError
from parlmesh.telemetry import get_logger

from .config import UNREACHABLE, MapekConfig, RuleConfig
from .knowledge import Knowledge
from .node_answers import LONGEST_TEXT, Unusable, readings, standing, symptoms
from .planned_action import Executor
from .planning.arbiter import Arbiter
from .planning.symptom_order import most_urgent
from .planning.trained_planner import Policy
from .types import Decision, Health, NodeReport, Symptom

log = get_logger("parlmesh.mapek")
_MOST_SEEN = 60
"""Most metrics saved with a decision, for policies to learn from."""


class Ask(Protocol):
    """Sends one task to a node, or to any node, and waits at most `seconds` for its outcome."""

    def __call__(
        self, kind: str, parameters: Mapping[str, Any], *, node: str = "", seconds: float
    ) -> Awaitable[Outcome]:
        """The outcome, also when the deadline has passed."""
        ...


@dataclass(slots=True)
class Surroundings:
    """The objects that all journeys of a cycle share."""

    config: MapekConfig
    cycle: int
    ask: Ask
    arbiter: Arbiter
    knowledge: Knowledge
    executor: Executor
    clock: Callable[[], float]
    instance: str
    """Distinguishes this loop from others of the same name."""
    contexts: Mapping[str, str] = field(default_factory=dict)
    silent: Mapping[str, int] = field(default_factory=dict)
    """Consecutive earlier cycles without an answer, by node."""
    policy: Policy | None = None
    """A trained planner."""


class Journey:
    """Runs its stages in order, alone or in step with others."""

    def __init__(self, node: str, shared: Surroundings) -> None:
        self.report = NodeReport(node, Health.UNKNOWN)
        self._shared = shared
        self._planned: tuple[Decision, RuleConfig] | None = None

    @property
    def stages(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """The stages in order; each does nothing when the previous one left nothing to do."""
        return self.monitor, self.analyse, self.plan, self.execute

    async def monitor(self) -> None:
        """Reads the node."""
        shared, node = self._shared, self.report.node
        parameters = {"node": node, "probes": shared.config.probes.model_dump(mode="json")}
        answer = await self._answer(shared.config.kinds.monitor, parameters, node=node)
        if answer is None:
            return
        try:
            self.report.metrics, self.report.missing = readings(answer)
        except Unusable as error:
            self.report.why_unknown = str(error)

    async def analyse(self) -> None:
        """Finds the symptoms; a node that has not answered for several cycles is one."""
        shared, report = self._shared, self.report
        if report.why_unknown:
            silent = shared.silent.get(report.node, 0) + 1
            if silent >= shared.config.unknown_cycles:
                why = f"no answer in {silent} cycles: {report.why_unknown}"
                limit = float(shared.config.unknown_cycles)
                report.symptoms = (Symptom(UNREACHABLE, UNREACHABLE, float(silent), limit, "critical", why),)
            return
        config = shared.config
        parameters = {
            "node": report.node,
            "loop": config.name,
            "reading": f"{shared.instance} {shared.cycle}",
            "metrics": dict(report.metrics),
            "thresholds": [each.model_dump(mode="json") for each in config.thresholds],
            "detection": config.detection.model_dump(mode="json"),
        }
        answer = await self._answer(config.kinds.analyse, parameters, node=report.node)
        if answer is None:
            return
        try:
            report.symptoms = symptoms(answer)
        except Unusable as error:
            report.why_unknown = str(error)
            return
        if report.symptoms:
            report.health = Health.SICK
        elif report.missing:
            name, why = next(iter(report.missing.items()))
            report.why_unknown = f"{name}: {why}"
        else:
            report.health = Health.HEALTHY

    async def plan(self) -> None:
        """Chooses one action for the most urgent actionable symptom; the others are held, with the reason."""
        shared, report = self._shared, self.report
        now = shared.clock()
        for symptom in most_urgent({each.name: each for each in report.symptoms}):
            decision_id = _id(shared.instance, shared.cycle, report.node, symptom.name)
            decision = Decision(decision_id, shared.cycle, report.node, symptom, started=now)
            rule = shared.arbiter.rule_for(symptom.name)
            decision.rule, decision.context = rule.symptom if rule else "", shared.contexts.get(report.node, "")
            decision.reason = shared.arbiter.held(report.node, symptom, rule, now)
            report.decisions.append(decision)
            if decision.reason or rule is None:
                continue
            if self._planned is not None:
                decision.reason = (
                    f"one action at a time per node; {self._planned[0].action} is for {self._planned[0].symptom.name}"
                )
                continue
            if await self._choose(decision, rule):
                self._planned = decision, rule

    async def execute(self) -> None:
        """Takes the chosen action."""
        if self._planned is not None:
            decision, rule = self._planned
            await self._shared.executor.perform(decision, rule, self.report)

    async def _choose(self, decision: Decision, rule: RuleConfig) -> bool:
        shared = self._shared
        free, refused = shared.arbiter.closed(rule, shared.clock())
        if not free:
            decision.reason = "; ".join(f"{action}: {why}" for action, why in refused.items())
            return False
        candidates = shared.knowledge.candidates(rule.symptom, free, decision.context, decision.node)
        parameters = {
            "node": decision.node,
            "planner": shared.config.planner.kind,
            "seed": f"{shared.config.planner.seed} {decision.id}",
            "candidates": [each.to_dict() for each in candidates],
            **self._by_policy(decision, free),
        }
        decision.inputs = {
            "metrics": _seen(self.report.metrics, decision.symptom.metric),
            "candidates": parameters["candidates"],
            "refused": refused,
            **({"policy": shared.policy.digest} if shared.policy else {}),
        }
        outcome = await shared.ask(shared.config.kinds.plan, parameters, seconds=shared.config.node_seconds)
        answer = outcome.value
        if answer is None:
            decision.reason = f"the planner did not answer: {outcome.error}"[:LONGEST_TEXT]
            return False
        action = answer.get("action")
        if not isinstance(action, str) or action not in free:
            # Planners are not trusted: an action that the rule does not allow is never taken.
            decision.reason = f"the plan named {str(action)[:100]!r}, which the rule for {rule.symptom} does not allow"
            return False
        decision.action, decision.kind = action, shared.config.actions[action].kind
        decision.inputs = {**decision.inputs, "standing": standing(answer, free)}
        decision.expected = shared.config.actions[decision.action].expected
        decision.reason = str(answer.get("reason", ""))[:LONGEST_TEXT]
        return True

    def _by_policy(self, decision: Decision, free: list[str]) -> dict[str, Any]:
        """The part of a trained policy that concerns these actions in this situation."""
        policy = self._shared.policy
        rule = policy.rules.get(decision.rule) if policy else None
        if rule is None:
            return {}
        return {
            "models": {name: rule.actions[name].model_dump(mode="json") for name in free if name in rule.actions},
            "features": rule.features(decision.symptom, decision.context, self.report.metrics),
        }

    async def _answer(self, kind: str, parameters: Mapping[str, Any], *, node: str) -> dict[str, Any] | None:
        try:
            outcome = await self._shared.ask(kind, parameters, node=node, seconds=self._shared.config.node_seconds)
        except FleetError as error:
            self.report.why_unknown = error.message[:LONGEST_TEXT]
            return None
        if outcome.value is None:
            self.report.why_unknown = f"{kind}: {outcome.error}"[:LONGEST_TEXT]
        return outcome.value


def _id(*parts: object) -> str:
    """Short enough to type, and different for every decision of every loop."""
    return sha256(" ".join(map(str, parts)).encode()).hexdigest()[:12]


def _seen(metrics: Mapping[str, float], first: str) -> dict[str, float]:
    names = sorted(metrics, key=lambda name: (name != first, name))[:_MOST_SEEN]
    return {name: metrics[name] for name in names}
