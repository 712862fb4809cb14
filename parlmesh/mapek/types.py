"""What travels between the phases of a cycle."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from .config import Severity


class Health(StrEnum):
    """What a cycle knows of a node. A missing answer is UNKNOWN, never HEALTHY."""

    HEALTHY = "healthy"
    SICK = "sick"
    UNKNOWN = "unknown"


class Status(StrEnum):
    """What became of a decision."""

    HELD = "held"
    """Nothing was done; `reason` says why."""
    STARTED = "started"
    """Written down before anything is sent; one that stays so belongs to a loop that died."""
    DRY_RUN = "dry run"
    """It would have been done."""
    WORKED = "worked"
    FAILED = "failed"
    """The action failed or did not help, and stands or could not be undone."""
    ROLLED_BACK = "rolled back"
    """The action failed or did not help, and was undone."""
    UNKNOWN = "unknown"
    """No answer: it may have happened."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """Something wrong on a node: by a threshold, by a detector, or by silence."""

    name: str
    metric: str
    value: float
    limit: float
    severity: Severity
    why: str
    present: bool = True
    """The reading is past its limit now; False while it has not yet come back far enough."""
    fresh: bool = True
    """Raised in this cycle; False while it lasts, and when it comes back after a short while."""
    steady: bool = True
    """It was past its limit in all of the last readings, so that acting again is no answer to noise."""
    flapping: bool = False
    """It comes and goes too often to be acted on."""

    def to_dict(self) -> dict[str, Any]:
        """For a task's parameters and the knowledge."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One allowed action, and what is known of it for this symptom."""

    action: str
    tries: float = 0.0
    successes: float = 0.0
    mean_seconds: float = 0.0
    """To the end of a successful try."""
    failures: int = 0
    """In a row on the node at hand, for this symptom."""

    def to_dict(self) -> dict[str, Any]:
        """For a task's parameters."""
        return asdict(self)


@dataclass(slots=True)
class Decision:
    """One choice for one symptom of one node, with all that explains it."""

    id: str
    cycle: int
    node: str
    symptom: Symptom
    action: str = ""
    kind: str = ""
    rule: str = ""
    """The symptom pattern of the rule that applied; what worked is learnt by it."""
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
    """Probes that gave no answer, and why: unknown, not healthy."""


@dataclass(slots=True)
class CycleReport:
    """One cycle over all nodes."""

    cycle: int
    started: float
    seconds: float
    nodes: list[NodeReport]
    trouble: str = ""
    """Why the cycle could not be remembered."""

    def of(self, health: Health) -> list[NodeReport]:
        """The nodes of that health, by name."""
        return [node for node in self.nodes if node.health is health]

    @property
    def decisions(self) -> list[Decision]:
        """All of the cycle, held ones included."""
        return [decision for node in self.nodes for decision in node.decisions]

    @property
    def actions(self) -> list[Decision]:
        """What was done, or would have been."""
        return [decision for decision in self.decisions if decision.status is not Status.HELD]
