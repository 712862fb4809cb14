"""An algorithm's interface to a run: updates from fragments, a policy to publish, and its state for checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from parlmesh.types import Array, Fragment


@dataclass(frozen=True, slots=True)
class Update:
    """The results of one update."""

    steps: int
    metrics: Mapping[str, float]
    # False when a loss or gradient was not finite; the model is then unchanged.
    applied: bool


class Trainer(Protocol):
    """Owns a policy in training. Not thread-safe: one thread updates, others read the published policies."""

    def update(self, fragments: Sequence[Fragment], progress: float) -> Update:
        """Learns from whole fragments; `progress` in [0, 1] is the used share of the step budget."""

    def policy_blob(self) -> bytes:
        """The policy as actors read it."""

    def tensors(self) -> Mapping[str, Array]:
        """Everything that decides the next update, the random state included."""

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
