"""The configuration of a loop: thresholds, rules and actions from one YAML file."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from parlmesh.config import Config

DEFAULTS = Path(__file__).with_name("defaults.yaml")
"""The thresholds, rules and actions of a loop that has no configuration file."""

ANOMALY = "anomaly"
UNREACHABLE = "unreachable"
"""The symptom of a node that has not answered for several cycles."""

Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[a-zA-Z0-9_.-]+$")]
Severity = Literal["warning", "critical"]


class ThresholdConfig(Config):
    """When a metric becomes a symptom, and when the symptom ends."""

    metric: str = Field(min_length=1, max_length=200)
    """Name of a metric; a trailing `*` matches any ending, e.g. rtt_ms.*"""
    above: float | None = None
    """A symptom at this value or higher."""
    below: float | None = None
    """A symptom at this value or lower."""
    clear: float | None = None
    """Where the symptom ends; null = a tenth away from the threshold."""
    cycles: int = Field(default=1, ge=1, le=1000)
    """Consecutive readings past the threshold before it is a symptom."""
    clear_cycles: int = Field(default=3, ge=1, le=1000)
    """Consecutive readings beyond `clear` before it ends."""
    severity: Severity = "warning"

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError(f"the threshold of {self.metric} needs exactly one of above and below")
        if self.above is not None and self.clear is not None and self.clear > self.above:
            raise ValueError(f"clear of {self.metric} is {self.clear:g}; it must be at most above, {self.above:g}")
        if self.below is not None and self.clear is not None and self.clear < self.below:
            raise ValueError(f"clear of {self.metric} is {self.clear:g}; it must be at least below, {self.below:g}")
        return self


class DetectionConfig(Config):
    """Streaming detectors that learn each node's usual values."""

    metrics: tuple[str, ...] = ()
    """Metrics to watch; a trailing `*` matches any ending. None = no detection."""
    voters: tuple[Literal["robust_z", "ewma", "seasonal", "page_hinkley", "extremes", "half_space"], ...] = Field(
        default=("robust_z", "ewma", "seasonal", "extremes", "half_space"), min_length=1, max_length=6
    )
    """Detectors whose scores are averaged into the ensemble's score."""
    threshold: float = Field(default=0.34, gt=0, lt=1)
    """Lowest ensemble score that counts as an anomaly."""
    quiet: int = Field(default=432, ge=1, le=100_000)
    """Earlier readings whose scores an anomaly must exceed, so that a repeating pattern is reported once."""
    probation: int = Field(default=100, ge=10, le=100_000)
    """First readings, used only for learning."""
    severity: Severity = "warning"


class ProbesConfig(Config):
    """Measurements of every node in addition to its own sensors."""

    neighbours: dict[Name, str] = Field(default_factory=dict, max_length=64)
    """Round-trip targets by name: host:port opens a connection, ping://host sends a ping."""
    prometheus: dict[Name, str] = Field(default_factory=dict, max_length=16)
    """Metric pages by name: http://host:port/metrics; their samples become name:sample."""
    samples: tuple[str, ...] = ()
    """Samples to keep from those pages; a trailing `*` matches any ending."""
    services: tuple[str, ...] = Field(default=(), max_length=64)
    """Names of processes that should run; service.NAME counts the running ones."""
    disks: tuple[str, ...] = ("/",)
    """Folders whose file systems are measured; disk_percent is that of the fullest."""


class VerifyConfig(Config):
    """Conditions that must hold after an action; otherwise it is rolled back."""

    metric: str = ""
    """Metric to read again; empty = the symptom's own."""
    above: float | None = None
    below: float | None = None
    """Bounds the metric must respect; with neither, it must no longer be past the symptom's threshold."""
    after_seconds: float = Field(default=0.0, ge=0, le=3600)
    """Settling time before the metric is read."""


class ActionConfig(Config):
    """One available action, under the name that rules use."""

    kind: str = Field(min_length=1, max_length=100)
    """An installed action: restart_unit, restart_process, route, scale, drain, pause_run, quarantine, dry_run …"""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Passed to the action; {node} in a string becomes the node's name."""
    timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    verify: VerifyConfig | None = None
    """Null = the action's own answer decides whether it succeeded."""
    rollback: bool = True
    """Undo it when it failed, did not help or ended without an answer."""
    confirm_seconds: float = Field(default=60.0, ge=0, le=86_400)
    """Time within which the loop must confirm the action. Otherwise the node undoes it: the loop may be dead, or the
    action may have cut the connection to it. Must be longer than verify.after_seconds; 0 = no confirmation needed."""
    disruptive: bool = True
    """Counts against max_disrupted."""
    resource: str = ""
    """Actions on the same resource never run at the same time; {node} becomes the node's name. Empty = the node."""
    expected: str = ""
    """The expected effect, in words; shown by `explain`."""

    @model_validator(mode="after")
    def _time_to_confirm(self) -> Self:
        settles = self.verify.after_seconds if self.verify else 0.0
        if 0 < self.confirm_seconds <= settles:
            raise ValueError(
                f"confirm_seconds is {self.confirm_seconds:g}; it must be longer than verify.after_seconds, {settles:g}"
            )
        return self


class RuleConfig(Config):
    """The actions allowed for a symptom."""

    symptom: str = Field(min_length=1, max_length=200)
    """Metric, anomaly.METRIC or unreachable; a trailing `*` matches any ending."""
    actions: tuple[Name, ...] = Field(min_length=1, max_length=32)
    """Allowed actions in order of preference. All others are forbidden."""
    cooldown_seconds: float = Field(default=600.0, ge=0, le=86_400)
    """Wait after an action on a node for this symptom before the next one."""


class BreakerConfig(Config):
    """Stops an action that fails everywhere."""

    failures: int = Field(default=5, ge=1, le=1000)
    """Consecutive failures that open the breaker."""
    open_seconds: float = Field(default=60.0, ge=0, le=86_400)
    probes: int = Field(default=3, ge=1, le=1000)
    """Tries allowed after that; all must succeed to close the breaker."""


class PlannerConfig(Config):
    """How one of the allowed actions is chosen."""

    kind: Literal["rules", "learned", "policy"] = "rules"
    """rules: the first that may run. learned: by what worked before, from the knowledge. policy: by a trained file."""
    policy: Path | None = None
    """The file, for the kind policy; `parlmesh mapek train` writes it."""
    context: tuple[str, ...] = ()
    """Node labels by which the learned planner tells incidents apart."""
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _policy_has_a_file(self) -> Self:
        if (self.kind == "policy") != (self.policy is not None):
            raise ValueError("planner.policy must name a file for the planner kind policy, and must be empty otherwise")
        return self


class KindsConfig(Config):
    """Task kinds of the four phases; change them to use your own handlers."""

    monitor: str = "mapek_monitor"
    analyse: str = "mapek_analyse"
    plan: str = "mapek_plan"
    execute: str = "mapek_execute"


class MapekConfig(Config):
    """Settings of one loop."""

    name: Name = "mapek"
    """Two loops on one mesh need different names; leases decide which of them may act on a node."""
    interval_seconds: float = Field(default=3.14, gt=0, le=86_400)
    """Time from the start of one cycle to the start of the next."""
    node_seconds: float = Field(default=10.0, gt=0, le=3600)
    """Longest wait for a node's answer; a node that does not answer is unknown."""
    unknown_cycles: int = Field(default=3, ge=1, le=10_000)
    """Cycles without an answer before a node has the symptom `unreachable`."""
    nodes: tuple[str, ...] = ()
    """Managed nodes; empty = all nodes that have an actor, and those that answered in the last hour."""
    knowledge: Path = Path("mapek.sqlite")
    dry_run: bool = True
    """Report what would be done, and do nothing."""
    max_disrupted: float = Field(default=0.2, gt=0, le=1)
    """Share of the nodes on which disruptive actions may run at once; always at least one node."""
    lease_seconds: float = Field(default=60.0, gt=0, le=86_400)
    """How long the loop keeps a node's lease beyond an action's time limit."""
    thresholds: tuple[ThresholdConfig, ...] = Field(default=(), max_length=1000)
    detection: DetectionConfig = DetectionConfig()
    probes: ProbesConfig = ProbesConfig()
    rules: tuple[RuleConfig, ...] = Field(default=(), max_length=1000)
    actions: dict[Name, ActionConfig] = Field(default_factory=dict, max_length=1000)
    breaker: BreakerConfig = BreakerConfig()
    planner: PlannerConfig = PlannerConfig()
    kinds: KindsConfig = KindsConfig()

    @model_validator(mode="after")
    def _everything_can_apply(self) -> Self:
        """Rejects entries that can never apply: they are mistakes, and staying silent would look like health."""
        twice = [node for node in self.nodes if self.nodes.count(node) > 1]
        if twice:
            raise ValueError(f"nodes has {twice[0]!r} twice")
        for what, patterns in (
            ("threshold of", [each.metric for each in self.thresholds]),
            ("rule for", [each.symptom for each in self.rules]),
        ):
            for place, pattern in enumerate(patterns):
                hiding = next((each for each in patterns[:place] if matches(each, pattern)), None)
                if hiding is not None:
                    raise ValueError(f"the {what} {pattern} never applies: {hiding} comes before it and matches it")
        if self.kinds.analyse == KindsConfig().analyse:
            told = [UNREACHABLE, *(each.metric for each in self.thresholds)]
            told += [f"{ANOMALY}.{each}" for each in self.detection.metrics]
            for rule in self.rules:
                if not any(matches(each, rule.symptom) or matches(rule.symptom, each) for each in told):
                    raise ValueError(f"the rule for {rule.symptom} never applies: no threshold or detector reports it")
        return self

    @model_validator(mode="after")
    def _rules_name_actions(self) -> Self:
        for rule in self.rules:
            for action in rule.actions:
                if action not in self.actions:
                    known = ", ".join(sorted(self.actions)) or "none"
                    raise ValueError(f"the rule for {rule.symptom} names the action {action!r}; there are {known}")
        return self


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern is the name or, when it ends in `*`, a prefix of it."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
