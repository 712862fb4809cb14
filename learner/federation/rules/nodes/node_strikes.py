"""Answers that no honest node gives, counted by node. Pure."""

from dataclasses import dataclass, field

# Refusals that are the node's own fault. Late, replayed or broken-off updates happen to honest nodes too.
BAD_REASONS = frozenset(
    {
        "ANSWERED_TWICE",
        "BAD_ANSWER",
        "NORM",
        "NOT_FINITE",
        "NO_SAMPLES",
        "UPDATE_DIGEST",
        "UPDATE_ENCODING",
        "UPDATE_METRICS",
        "UPDATE_SCHEMA",
        "UPDATE_SIZE",
    }
)
_ROUNDS_OUT = 20
_LONGEST_REASON = 200


@dataclass(slots=True)
class Strike:
    """Bad answers of one node since its last good one."""

    count: int = 0
    last: str = ""
    out_until: int = 0
    """First round in which it is asked again; 0 = it was not excluded."""


@dataclass(slots=True)
class Strikes:
    """After `limit` bad answers in a row, a node is not asked for some rounds; 0 = no limit."""

    limit: int
    by_node: dict[str, Strike] = field(default_factory=dict)

    def strike(self, node_id: str, reason: str, round_number: int) -> None:
        """Counts a bad answer."""
        strike = self.by_node.setdefault(node_id, Strike())
        strike.count += 1
        strike.last = reason[:_LONGEST_REASON]
        if self.limit and strike.count >= self.limit:
            strike.out_until = round_number + 1 + _ROUNDS_OUT

    def exclude(self, node_id: str, reason: str, round_number: int) -> None:
        """Counts an answer that spoilt a round for all others: one is enough."""
        strike = self.by_node.setdefault(node_id, Strike())
        strike.count = max(strike.count, self.limit - 1)
        self.strike(node_id, reason, round_number)

    def good(self, node_id: str) -> None:
        """Forgets a node's bad answers."""
        self.by_node.pop(node_id, None)

    def out(self, node_id: str, round_number: int) -> str:
        """Why a node is not asked in a round; empty when it is."""
        strike = self.by_node.get(node_id)
        if strike is None or round_number >= strike.out_until:
            return ""
        return f"{strike.count} bad answers in a row, the last {strike.last}; asked again in round {strike.out_until}"
