"""A node's requirements for a federation before it sends an update, and its own record of the privacy it has spent."""

import json
import math
import threading
from pathlib import Path

from parlmesh.durable_files import PRIVATE, replace_file
from parlmesh.errors import FailedPrecondition, Unavailable
from parlmesh.federation.privacy import gaussian_epsilon, release_mu

from ..config import PrivacyFloorConfig


class PrivacyFloor:
    """Used from any thread. The squares of μ of Gaussian releases add up, whatever the noise of each."""

    def __init__(self, config: PrivacyFloorConfig) -> None:
        self._config = config
        self._lock = threading.Lock()

    def check_fit(self, clip_norm: float, noise_multiplier: float) -> None:
        """FailedPrecondition when the federation asks for an update that this node does not send."""
        least, longest = self._config.min_noise_multiplier, self._config.max_clip_norm
        if self._config.epsilon_budget and not noise_multiplier:
            raise _refusal("this node sends updates only with noise (privacy.epsilon_budget); the federation adds none")
        if noise_multiplier < least:
            raise _refusal(
                f"this node only sends updates with a noise_multiplier of at least {least:g}"
                f" (privacy.min_noise_multiplier), the federation's is {noise_multiplier:g}"
            )
        if longest and not 0.0 < clip_norm <= longest:
            raise _refusal(
                f"this node only sends updates with a clip_norm up to {longest:g} (privacy.max_clip_norm),"
                f" the federation's is {clip_norm:g}"
            )

    def check_sum(self, nodes: int) -> None:
        """FailedPrecondition when an update would be summed with too few others; `nodes` is 1 for an unmasked one."""
        fewest = self._config.min_summed_nodes
        if nodes < fewest:
            found = f"sums at least {nodes}" if nodes > 1 else "wants them unmasked"
            raise _refusal(
                f"this node sends updates only in secure sums of at least {fewest} nodes"
                f" (privacy.min_summed_nodes); the federation {found}"
            )

    def check_evaluation(self) -> None:
        """FailedPrecondition when this node evaluates no models, because results are sent without noise."""
        config = self._config
        if (config.min_noise_multiplier or config.epsilon_budget) and not config.evaluate:
            raise _refusal("this node evaluates no models: results are sent without noise (privacy.evaluate)")

    def spend(self, node_id: str, noise_multiplier: float, *, in_parts: bool = False) -> None:
        """Called before an update is made. FailedPrecondition, with nothing spent, when it would exceed the budget.

        `in_parts`: the noise is that of a secure sum.
        """
        config = self._config
        if not config.epsilon_budget or config.ledger is None:
            return
        with self._lock:
            spent = self._read(config.ledger)
            total = spent.get(node_id, 0.0) + release_mu(noise_multiplier, in_parts=in_parts) ** 2
            epsilon = gaussian_epsilon(math.sqrt(total), config.delta)
            if epsilon > config.epsilon_budget:
                raise FailedPrecondition(
                    f"another update of node {node_id} would bring its epsilon to {epsilon:.4g};"
                    f" its budget is {config.epsilon_budget:g} (privacy.epsilon_budget)",
                    reason="PRIVACY_BUDGET",
                )
            spent[node_id] = total
            try:
                replace_file(config.ledger, json.dumps(spent).encode(), mode=PRIVATE)
            except OSError as error:
                text = f"{config.ledger} cannot be written: {error.strerror}; nothing is sent"
                raise Unavailable(text, reason="PRIVACY_LEDGER") from error

    @staticmethod
    def _read(ledger: Path) -> dict[str, float]:
        try:
            found = json.loads(ledger.read_bytes())
            return {str(node): _whole(value) for node, value in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            # The privacy spent before is unknown, so no more is spent.
            text = f"{ledger} cannot be read; nothing is sent"
            raise FailedPrecondition(text, reason="PRIVACY_LEDGER") from error


def _whole(value: object) -> float:
    if not isinstance(value, (int, float)) or not 0.0 <= value < math.inf:
        raise ValueError(value)
    return float(value)


def _refusal(message: str) -> FailedPrecondition:
    return FailedPrecondition(message, reason="PRIVACY_FLOOR")
