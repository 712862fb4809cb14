"""The types passed between the phases of a cycle."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from .config import Severity


class Health(StrEnum):
    """A node's health in one cycle. A missing answer is UNKNOWN, never HEALTHY."""

    HEALTHY = "healthy"
    SICK = "sick"
    UNKNOWN = "unknown"


class Status(StrEnum):
    """The result of a decision."""

    HELD = "held"
    """Nothing was done; `reason` says why."""
    STARTED = "started"
    """Recorded before anything is sent; a decision left in this state belongs to a loop that died."""
    DRY_RUN = "dry run"
    """It would have been done."""
    WORKED = "worked"
    FAILED = "failed"
    """The action failed or did not help, and was not or could not be undone."""
    ROLLED_BACK = "rolled back"
    """The action failed or did not help, and was undone."""
    UNKNOWN = "unknown"
    """No answer: it may have happened."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """A problem on a node, found by a threshold, by a detector or from missing answers."""

    name: str
    metric: str
    value: float
    limit: float
    severity: Severity
    why: str
    present: bool = True
    """The current reading is past the limit; False while it is recovering but has not cleared yet."""
    fresh: bool = True
    """Raised in this cycle; False while it lasts, and when it returns shortly after ending."""
    steady: bool = True
    """All recent readings were past the limit, so acting again does not react to noise."""
    flapping: bool = False
    """It comes and goes too often to act on."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form for task parameters and the knowledge."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One allowed action and its record for this symptom."""

    action: str
    tries: float = 0.0
    successes: float = 0.0
    mean_seconds: float = 0.0
    """Mean duration of a successful try."""
    failures: int = 0
    """Consecutive failures on this node for this symptom."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form for task parameters."""
        return asdict(self)


@dataclass(slots=True)
class Decision:
    """One choice for one symptom of one node, with everything that explains it."""

    id: str
    cycle: int
    node: str
    symptom: Symptom
    action: str = ""
    kind: str = ""
    rule: str = ""
    """The symptom pattern of the rule that applied; the learned planner groups outcomes by it."""
    context: str = ""
    reason: str = ""
    """Why this action, or why none."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    expected: str = ""
    measured: str = ""
    """The metric before and after, in words."""
    status: Status = Status.HELD
    error: str = ""
    started: float = 0.0
    seconds: float = 0.0


@dataclass(slots=True)
class NodeReport:
    """One node in one cycle."""

    node: str
    health: Health
    metrics: Mapping[str, float] = field(default_factory=dict)
    symptoms: tuple[Symptom, ...] = ()
    decisions: list[Decision] = field(default_factory=list)
    why_unknown: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Probes that gave no answer, and why; without other symptoms they make the node unknown, not healthy."""


@dataclass(slots=True)
class CycleReport:
    """One cycle over all nodes."""

    cycle: int
    started: float
    seconds: float
    nodes: list[NodeReport]
    trouble: str = ""
    """Why the cycle could not be saved."""

    def of(self, health: Health) -> list[NodeReport]:
        """The nodes with that health, in the report's order."""
        return [node for node in self.nodes if node.health is health]

    @property
    def decisions(self) -> list[Decision]:
        """All decisions of the cycle, including held ones."""
        return [decision for node in self.nodes for decision in node.decisions]

    @property
    def actions(self) -> list[Decision]:
        """Decisions that were carried out, or would have been in a real run."""
        return [decision for decision in self.decisions if decision.status is not Status.HELD]
