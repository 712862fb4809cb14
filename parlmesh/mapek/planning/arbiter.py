"""Decides whether to act: cool-downs, breakers, resources and the share of nodes disrupted at once. Does no I/O."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ..config import MapekConfig, RuleConfig, matches
from ..types import Symptom
from .circuit_breaker import Breaker
from .cooldown import LastAction, after


@dataclass(slots=True)
class Arbiter:
    """The arbiter of one loop. A claim is released when its action has ended."""

    config: MapekConfig
    last: dict[tuple[str, str], LastAction] = field(default_factory=dict)
    breakers: dict[str, Breaker] = field(default_factory=dict)
    nodes: int = 1
    owing: Callable[[], Collection[str]] = frozenset
    """Nodes with a pending rollback."""
    _resources: dict[str, str] = field(default_factory=dict)
    _disrupted: set[str] = field(default_factory=set)

    def rule_for(self, symptom: str) -> RuleConfig | None:
        """The first matching rule."""
        return next((rule for rule in self.config.rules if matches(rule.symptom, symptom)), None)

    def held(self, node: str, symptom: Symptom, rule: RuleConfig | None, now: float) -> str:
        """Why no action may be taken for the symptom; empty = one may be."""
        if rule is None:
            return f"no rule matches {symptom.name}"
        if node in self.owing():
            return "the rollback of an earlier action on this node is pending"
        if symptom.flapping:
            return f"{symptom.metric} comes and goes around {symptom.limit:g}; it must settle first"
        if not symptom.present:
            return f"{symptom.metric} is recovering"
        last = self.last.get((node, rule.symptom))
        if last is not None:
            wait = last.free_at(rule.cooldown_seconds) - now
            if wait > 0:
                doubled = f", doubled after {last.failures} failures" if last.failures else ""
                return f"cooling down for another {wait:.0f} s{doubled}"
            if not symptom.fresh and not symptom.steady:
                return f"{symptom.metric} must stay past {symptom.limit:g} before another action is taken for it"
        return ""

    def closed(self, rule: RuleConfig, now: float) -> tuple[list[str], dict[str, str]]:
        """The rule's actions that may be tried, and why the others may not be."""
        free, refused = [], {}
        for action in rule.actions:
            breaker = self.breakers.get(action)
            if breaker is None or breaker.allows(now):
                free.append(action)
            else:
                wait = max(breaker.open_until - now, 0.0)
                refused[action] = f"its circuit breaker is open for another {wait:.0f} s"
        return free, refused

    def claim(self, node: str, action: str) -> str:
        """Claims the resources of the action; returns why that is not possible, or an empty string."""
        config = self.config.actions[action]
        resource = self.resource(node, action)
        holder = self._resources.get(resource)
        if holder is not None:
            return f"{resource} is being changed for {holder}"
        most = max(1, int(self.config.max_disrupted * self.nodes))
        if config.disruptive and len(self._disrupted | {node}) > most:
            return f"disruptive actions run on {len(self._disrupted)} nodes; at most {most} of {self.nodes} are allowed"
        self._resources[resource] = node
        if config.disruptive:
            self._disrupted.add(node)
        self.breaker(action).begin()
        return ""

    def release(self, node: str, action: str) -> None:
        """Releases the claim after the action."""
        self._resources.pop(self.resource(node, action), None)
        self._disrupted.discard(node)

    def ended(self, node: str, rule: RuleConfig, action: str, success: bool, now: float) -> None:
        """Records the end of an action for its cool-down and breaker."""
        self.last[node, rule.symptom] = after(self.last.get((node, rule.symptom)), success, now)
        self.breaker(action).end(success, now)

    def resource(self, node: str, action: str) -> str:
        """The resources that no two actions may change at the same time."""
        return self.config.actions[action].resource.replace("{node}", node) or f"node {node}"

    def breaker(self, action: str) -> Breaker:
        """The breaker of one action, shared by all nodes."""
        return self.breakers.setdefault(action, Breaker(self.config.breaker))
