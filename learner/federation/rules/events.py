"""The events of a federation, and its actions. The journal keeps the events; a restart replays them."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .masked_round import NodeKeys, NodeShares
from .records import Answer, Assignment, Counted, FederationState


@dataclass(frozen=True, slots=True)
class Begin:
    """Nodes are connected for a round. Nonces are made from the entropy; the wall time is only shown."""

    nodes: tuple[str, ...]
    entropy: str
    wall_time: float = 0.0


@dataclass(frozen=True, slots=True)
class Delivered:
    """An update has arrived whole."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Refused:
    """An update was refused before it was whole."""

    node_id: str
    round: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A node's task ended without an update; `bad` when that is the node's own fault."""

    node_id: str
    round: int
    message: str
    nonce: str = ""
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Damaged:
    """An accepted update in the spool is missing or damaged; the node is asked again."""

    nonce: str


@dataclass(frozen=True, slots=True)
class Aggregated:
    """The new model is on disk."""

    version: int
    digest: str
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A node evaluated the newest model; no samples if it could not. `bad` says why its answer is wrong."""

    node_id: str
    samples: int
    metrics: dict[str, float]
    bad: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A node has answered a step before a secure round trains; the nonce is that of its assignment."""

    node_id: str
    nonce: str
    answer: NodeKeys | NodeShares


@dataclass(frozen=True, slots=True)
class NotUnmasked:
    """A secure sum cannot be unmasked; the message says why."""

    round: int
    message: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to end: after the current round, or immediately."""

    reason: str
    failed: bool = False
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Restored:
    """All earlier events in one: the state that they led to."""

    state: dict[str, Any]


Event: TypeAlias = (
    Begin
    | Delivered
    | Refused
    | TaskFailed
    | Damaged
    | Aggregated
    | Evaluated
    | Prepared
    | NotUnmasked
    | Tick
    | Stop
    | Restored
)


@dataclass(frozen=True, slots=True)
class SeekNodes:
    """Begin must follow as soon as enough nodes are connected."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Asks nodes to train."""

    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Asks nodes for a step that comes before a secure round trains."""

    step: str
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class Unmask:
    """Unmasks the sum of a round's masked updates, which becomes the next version."""

    round: int
    counted: tuple[Counted, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Withdraws the tasks of these nodes."""

    node_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Makes the next version from these updates, in the order of node ids."""

    round: int
    counted: tuple[Counted, ...]


@dataclass(frozen=True, slots=True)
class AskEvaluation:
    """Asks nodes to evaluate the newest model."""

    version: int
    node_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class End:
    """Nothing more will happen."""

    state: FederationState
    reason: str


Action: TypeAlias = SeekNodes | Ask | Prepare | Unmask | Withdraw | Aggregate | AskEvaluation | End
