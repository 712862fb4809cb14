"""The federation nodes that an actor represents, usually one: their learning tasks, and their state between rounds."""

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.federation.compression import ErrorFeedback
from parlmesh.federation.learning_task import LearningTask, make_task
from parlmesh.types import Array

from ..config import PrivacyFloorConfig
from .federation_client import FederationLink
from .privacy_floor import PrivacyFloor

if TYPE_CHECKING:
    from .masking import Masking

_KEPT = 8


class LearningTasks:
    """Learning tasks by name and settings; used from any thread."""

    def __init__(self, installed: Mapping[str, str]) -> None:
        self._installed = installed
        self._lock = threading.Lock()
        self._made: OrderedDict[str, LearningTask] = OrderedDict()

    def get(self, name: str, settings: Mapping[str, Any]) -> LearningTask:
        """InvalidInput when it is not installed or refuses its settings."""
        key = json.dumps([name, settings], sort_keys=True)
        with self._lock:
            if key not in self._made:
                self._made[key] = make_task(name, settings, self._installed)
                while len(self._made) > _KEPT:
                    self._made.popitem(last=False)
            return self._made[key]


_FEDERATIONS_KEPT = 4


@dataclass(slots=True)
class Kept:
    """A node's state in a federation from round to round."""

    local: Mapping[str, Array] = field(default_factory=dict)
    feedback: ErrorFeedback | None = None
    # An update with residuals or noise cannot be made again, so a retry sends the same bytes.
    nonce: str = ""
    data: bytes = b""
    samples: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    # The keys for the secure round with `masking_nonce`.
    masking: "Masking | None" = None
    masking_nonce: str = ""
    # Two attempts of one step must not both make keys or both apply masks.
    turn: threading.Lock = field(default_factory=threading.Lock)

    def masking_of(self, nonce: str) -> "Masking":
        """FailedPrecondition if no keys were made for that round, or another round has started since."""
        if self.masking is None or self.masking_nonce != nonce:
            raise FailedPrecondition("this node has no keys for that round", reason="SECURE_SUM")
        return self.masking


class Participants:
    """Shared by all kinds of federated tasks, which use it from any thread."""

    def __init__(
        self, nodes: Sequence[str], link: FederationLink, tasks: LearningTasks, floor: PrivacyFloor | None = None
    ) -> None:
        self.link = link
        self.tasks = tasks
        self.floor = floor or PrivacyFloor(PrivacyFloorConfig())
        self._nodes = frozenset(nodes)
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, dict[str, Kept]] = OrderedDict()

    def check(self, nodes: Iterable[str]) -> None:
        """InvalidInput naming a node that is not here."""
        for node in nodes:
            if node not in self._nodes:
                raise InvalidInput(f"node {node!r} is not one of the {len(self._nodes)} that this actor represents")

    def kept(self, federation_id: str, node_id: str) -> Kept:
        """The state of one federation on one node; the oldest federation is forgotten when there are too many."""
        with self._lock:
            nodes = self._kept.setdefault(federation_id, {})
            self._kept.move_to_end(federation_id)
            while len(self._kept) > _FEDERATIONS_KEPT:
                self._kept.popitem(last=False)
            return nodes.setdefault(node_id, Kept())
