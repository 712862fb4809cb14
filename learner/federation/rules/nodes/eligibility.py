"""Which nodes may be asked: those with privacy budget left and without too many bad answers. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from parlmesh.federation.config import FederationConfig

from .node_strikes import Strikes
from .privacy_budget import Spending
from .voters import voter_of


@dataclass(slots=True)
class Eligibility:
    """Eligibility in one federation. Bad answers and spending count against a node, a spoilt round against its voter.

    Each update counts on its own, although nodes of one host send theirs together: one broken set of data must not
    exclude its neighbours, and their good answers must not hide it.
    """

    config: FederationConfig
    strikes: Strikes = field(init=False)
    spending: Spending = field(init=False)

    def __post_init__(self) -> None:
        self.strikes = Strikes(self.config.gate.max_strikes)
        self.spending = Spending(self.config.privacy)

    def able(self, nodes: Sequence[str], round_number: int) -> tuple[str, ...]:
        """Nodes that may be asked in a round. Those with bad answers are excluded, unless too few would remain."""
        nodes = tuple(node for node in nodes if self.spending.affords(node))
        good = tuple(node for node in nodes if not self.why_out(node, round_number))
        return good if len(good) >= self.config.selection.min_nodes else nodes

    def why_out(self, node_id: str, round_number: int) -> str:
        """Why a node is not asked in a round; empty when it is."""
        own = self.strikes.out(node_id, round_number)
        return own or self.strikes.out(voter_of(node_id, self.config), round_number)

    def left_out(self, connected: Iterable[str], asked: Iterable[str], round_number: int) -> Iterator[tuple[str, str]]:
        """Connected nodes that are not asked, and why."""
        known = set(asked)
        return ((node, self.why_out(node, round_number)) for node in connected if node not in known)

    def exclude(self, node_id: str, reason: str, round_number: int) -> None:
        """Bars the voter of a node that spoilt a round: its host could do so again under another name."""
        self.strikes.exclude(voter_of(node_id, self.config), reason, round_number)

    def forgive(self, node_id: str) -> None:
        """A node's answer was good."""
        self.strikes.good(node_id)
        self.strikes.good(voter_of(node_id, self.config))
