"""What a loop watches, when it acts and what it may do: thresholds, rules and actions of one YAML file."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from parlmesh.config import Config

ANOMALY = "anomaly"
UNREACHABLE = "unreachable"
"""The symptom of a node that gave no answer for several cycles."""

Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[a-zA-Z0-9_.-]+$")]
Severity = Literal["warning", "critical"]


class ThresholdConfig(Config):
    """When a metric is a symptom, and when it is none any more."""

    metric: str = Field(min_length=1, max_length=200)
    """Name of a metric; `*` at its end stands for any ending, e.g. rtt_ms.*"""
    above: float | None = None
    """A symptom from here up."""
    below: float | None = None
    """A symptom from here down."""
    clear: float | None = None
    """Where it ends; a tenth away from the threshold where none is given."""
    cycles: int = Field(default=1, ge=1, le=1000)
    """Readings in a row before it is a symptom."""
    clear_cycles: int = Field(default=3, ge=1, le=1000)
    """Readings in a row beyond `clear` before it has ended."""
    severity: Severity = "warning"

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError(f"the threshold of {self.metric} needs above or below, one of them")
        if self.above is not None and self.clear is not None and self.clear > self.above:
            raise ValueError(f"clear of {self.metric} is {self.clear:g}; it must be at most above, {self.above:g}")
        if self.below is not None and self.clear is not None and self.clear < self.below:
            raise ValueError(f"clear of {self.metric} is {self.clear:g}; it must be at least below, {self.below:g}")
        return self


class DetectionConfig(Config):
    """Streaming detectors that learn what is usual on each node."""

    metrics: tuple[str, ...] = ()
    """Metrics that are followed; `*` at the end of a name stands for any ending. None = no detection."""
    voters: tuple[Literal["robust_z", "ewma", "seasonal", "page_hinkley", "extremes", "half_space"], ...] = Field(
        default=("robust_z", "ewma", "seasonal", "extremes", "half_space"), min_length=1, max_length=6
    )
    """Detectors whose mean score is the ensemble's."""
    threshold: float = Field(default=0.34, gt=0, lt=1)
    """Ensemble's score from which a reading is an anomaly."""
    quiet: int = Field(default=432, ge=1, le=100_000)
    """Readings before it whose scores an anomaly must exceed, so that what repeats is told once."""
    probation: int = Field(default=100, ge=10, le=100_000)
    """Readings that only teach."""
    severity: Severity = "warning"


class ProbesConfig(Config):
    """What every node measures besides itself."""

    neighbours: dict[Name, str] = Field(default_factory=dict, max_length=64)
    """Round trips by name: host:port, connected to; ping://host, pinged."""
    prometheus: dict[Name, str] = Field(default_factory=dict, max_length=16)
    """Metric pages by name: http://host:port/metrics; their samples are called name:sample."""
    samples: tuple[str, ...] = ()
    """Samples of those pages that are kept; `*` at the end stands for any ending."""
    services: tuple[str, ...] = Field(default=(), max_length=64)
    """Names of processes that should run; service.NAME is how many do."""
    disks: tuple[str, ...] = ("/",)
    """Folders whose file systems are measured; disk_percent is the fullest."""


class VerifyConfig(Config):
    """What must hold after an action, or it is rolled back."""

    metric: str = ""
    """Metric that is read again; empty = the symptom's own."""
    above: float | None = None
    below: float | None = None
    """Bounds that must hold; where neither is given, the symptom's threshold must not."""
    after_seconds: float = Field(default=0.0, ge=0, le=3600)
    """Time to settle before it is read."""


class ActionConfig(Config):
    """One thing that can be done, by the name rules use."""

    kind: str = Field(min_length=1, max_length=100)
    """An installed action: restart_unit, restart_process, route, scale, drain, pause_run, quarantine, dry_run …"""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """For the action; {node} in a text is the node's name."""
    timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    verify: VerifyConfig | None = None
    """Null = its success is taken from the action's own answer."""
    rollback: bool = True
    """Undo it when it failed or did not help, and when nobody knows how it ended."""
    confirm_seconds: float = Field(default=60.0, ge=0, le=86_400)
    """A node undoes by itself what the loop does not confirm within so long: the loop may be dead, or the action has
    cut the way to it. Must be longer than verify.after_seconds; 0 = it stands."""
    disruptive: bool = True
    """Counts against max_disrupted."""
    resource: str = ""
    """Actions of one resource never run together; {node} is the node's name. Empty = the node."""
    expected: str = ""
    """What it should do, in words; shown by `explain`."""

    @model_validator(mode="after")
    def _time_to_confirm(self) -> Self:
        settles = self.verify.after_seconds if self.verify else 0.0
        if 0 < self.confirm_seconds <= settles:
            raise ValueError(
                f"confirm_seconds is {self.confirm_seconds:g}; it must be longer than verify.after_seconds, {settles:g}"
            )
        return self


class RuleConfig(Config):
    """Which actions a symptom allows."""

    symptom: str = Field(min_length=1, max_length=200)
    """Metric, anomaly.METRIC or unreachable; `*` at its end stands for any ending."""
    actions: tuple[Name, ...] = Field(min_length=1, max_length=32)
    """Allowed ones, the first choice first. What is not here is forbidden."""
    cooldown_seconds: float = Field(default=600.0, ge=0, le=86_400)
    """After an action on a node for this symptom, before the next one."""


class BreakerConfig(Config):
    """Stops an action that fails everywhere."""

    failures: int = Field(default=5, ge=1, le=1000)
    """Failures in a row that open it."""
    open_seconds: float = Field(default=60.0, ge=0, le=86_400)
    probes: int = Field(default=3, ge=1, le=1000)
    """Tries allowed afterwards; all must succeed to close it."""


class PlannerConfig(Config):
    """How one of the allowed actions is chosen."""

    kind: Literal["rules", "learned", "policy"] = "rules"
    """rules: the first that may run. learned: by what worked, from the knowledge. policy: by a trained file."""
    policy: Path | None = None
    """The file, for the kind policy; `parlmesh mapek train` writes it."""
    context: tuple[str, ...] = ()
    """Labels of the node that tell incidents apart for the learned planner."""
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _policy_has_a_file(self) -> Self:
        if (self.kind == "policy") != (self.policy is not None):
            raise ValueError("the planner of the kind policy needs policy, a file; no other kind takes one")
        return self


class KindsConfig(Config):
    """Task kinds of the four phases, for handlers of one's own."""

    monitor: str = "mapek_monitor"
    analyse: str = "mapek_analyse"
    plan: str = "mapek_plan"
    execute: str = "mapek_execute"


class MapekConfig(Config):
    """One loop."""

    name: Name = "mapek"
    """Two loops on one mesh need two names; they share the nodes by leases."""
    interval_seconds: float = Field(default=3.14, gt=0, le=86_400)
    """From the start of a cycle to the start of the next."""
    node_seconds: float = Field(default=10.0, gt=0, le=3600)
    """Longest wait for one answer of a node; without one it is unknown."""
    unknown_cycles: int = Field(default=3, ge=1, le=10_000)
    """Cycles without an answer before a node has the symptom `unreachable`."""
    nodes: tuple[str, ...] = ()
    """Nodes that are managed; none given = all that have an actor, and those that had one in the last hour."""
    knowledge: Path = Path("mapek.sqlite")
    dry_run: bool = True
    """Say what would be done and do nothing."""
    max_disrupted: float = Field(default=0.2, gt=0, le=1)
    """Share of the nodes on which disruptive actions may be under way at once; always at least one."""
    lease_seconds: float = Field(default=60.0, gt=0, le=86_400)
    """How long a node belongs to the loop that acted on it, beyond the action's time limit."""
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
        """What can never apply is a slip, and silence about it would look like health."""
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
                    raise ValueError(f"the {what} {pattern} never applies: that of {hiding} stands before it")
        if self.kinds.analyse == KindsConfig().analyse:
            told = [UNREACHABLE, *(each.metric for each in self.thresholds)]
            told += [f"{ANOMALY}.{each}" for each in self.detection.metrics]
            for rule in self.rules:
                if not any(matches(each, rule.symptom) or matches(rule.symptom, each) for each in told):
                    raise ValueError(f"the rule for {rule.symptom} never applies: no threshold or detector tells it")
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
    """A name, or its beginning where the pattern ends in `*`."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
