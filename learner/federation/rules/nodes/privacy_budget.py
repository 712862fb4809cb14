"""How much privacy a federation has spent, and whether it may spend more. Pure.

Central: every version is a release in which each node counts at most once. Local and distributed: every update that was
requested from a node is one, whether or not it arrived or counted, even if its round was abandoned.
"""

from dataclasses import dataclass, field

from parlmesh.federation.config import PrivacyConfig
from parlmesh.federation.privacy import epsilon, releases_within

# More than any federation asks of a node.
_MOST = 1 << 40
_BY_NODE = ("local", "distributed")


@dataclass(slots=True)
class Spending:
    """`by_node` counts the updates asked of nodes that add noise themselves."""

    config: PrivacyConfig
    by_node: dict[str, int] = field(default_factory=dict)
    _allowed: int = _MOST

    def __post_init__(self) -> None:
        config = self.config
        if config.mode != "none" and config.epsilon_budget:
            self._allowed = releases_within(
                config.noise_multiplier, config.delta, config.epsilon_budget, _MOST, in_parts=self._in_parts
            )

    @property
    def _in_parts(self) -> bool:
        return self.config.mode == "distributed"

    def affords(self, node_id: str) -> bool:
        """Whether a node may be asked for one more update."""
        return self.config.mode not in _BY_NODE or self.by_node.get(node_id, 0) < self._allowed

    def affords_round(self, versions: int) -> bool:
        """Whether another version may follow this many."""
        return self.config.mode != "central" or versions < self._allowed

    def ask(self, node_id: str) -> None:
        """Counts one more release of a node."""
        if self.config.mode in _BY_NODE:
            self.by_node[node_id] = self.by_node.get(node_id, 0) + 1

    def reason(self) -> str:
        """Why a federation without budget ends."""
        return f"another round would give away more than the budget of epsilon {self.config.epsilon_budget:g}"

    def metrics(self, versions: int) -> dict[str, float]:
        """The largest spending of any node after this many versions, now and with one more release."""
        if self.config.mode == "none":
            return {}
        releases = versions if self.config.mode == "central" else max(self.by_node.values(), default=0)
        noise, delta = self.config.noise_multiplier, self.config.delta
        return {
            "privacy/epsilon": epsilon(noise, releases, delta, in_parts=self._in_parts),
            "privacy/delta": delta,
            "privacy/next_epsilon": epsilon(noise, releases + 1, delta, in_parts=self._in_parts),
        }
