"""The nodes of a round: the request to each, and whether it has answered or failed. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..records import LONGEST_MESSAGE, Answer, Assignment, Offer, UpdateRecord
from ..update_checks import check_asked, check_same
from .selection import Nonces


@dataclass(slots=True)
class Participants:
    """Assignments by node, answers by nonce."""

    assignments: dict[str, Assignment] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    early: dict[str, Answer] = field(default_factory=dict)
    """Updates accepted while no buffer is open."""
    failed: dict[str, str] = field(default_factory=dict)
    """Nodes whose task failed, and why."""
    numbers: dict[str, int] = field(default_factory=dict)
    """A permanent number for each node, from 1 in the order in which they first connected."""
    nonces: Nonces = field(default_factory=Nonces)

    def number(self, nodes: Iterable[str]) -> None:
        """Gives every new node the next number."""
        for node in nodes:
            self.numbers.setdefault(node, len(self.numbers) + 1)

    def open_round(self) -> None:
        """Opens a round, in which early updates count."""
        self.failed = {}
        self.answers, self.early = self.early, {}

    def assign(self, node: str, entropy: str, number: int, version: int) -> Assignment:
        """Asks a node in a round."""
        assignment = self.nonces.assign(entropy, node, self.numbers[node], number, version)
        self.assignments[node] = assignment
        return assignment

    def accept(self, answer: Answer, *, early: bool = False) -> None:
        """Counts an update, an early one in the next round."""
        (self.early if early else self.answers)[answer.nonce] = answer
        self.nonces.accept(answer.nonce)

    def take_back(self, nonce: str) -> None:
        """Takes back an update that was lost."""
        self.answers.pop(nonce, None)
        self.early.pop(nonce, None)
        self.nonces.take_back(nonce)

    def settled(self, node: str) -> bool:
        """Whether a node has answered or failed."""
        assignment = self.assignments.get(node)
        return node in self.failed or (assignment is not None and assignment.nonce in self.answers)

    @property
    def all_settled(self) -> bool:
        """Whether no node is left to wait for."""
        # Called for every update, so nodes are checked one by one only if the counts allow it.
        possible = len(self.answers) + len(self.failed) >= len(self.assignments)
        return possible and all(self.settled(node) for node in self.assignments)

    def unsettled(self) -> tuple[Assignment, ...]:
        """Assignments that are still waited for."""
        return tuple(each for node, each in self.assignments.items() if not self.settled(node))

    def waits_for(self, node_id: str, nonce: str) -> bool:
        """Whether the update with this nonce is still waited for."""
        assignment = self.assignments.get(node_id)
        return assignment is not None and assignment.nonce == nonce and not self.settled(node_id)

    def kept(self) -> list[Answer]:
        """Updates that are accepted and not yet aggregated."""
        return [*self.answers.values(), *self.early.values()]

    def check(self, offer: Offer, present: int, *, collecting: bool) -> Answer | None:
        """Whether an update's data is wanted: None = yes, an answer = it is already here; FleetError = no."""
        known = self.answers.get(offer.nonce) or self.early.get(offer.nonce)
        if known is not None and known.node_id == offer.node_id:
            check_same(offer, known)
            return known
        assignment = self.assignments.get(offer.node_id)
        if collecting and assignment is not None and assignment.round == offer.round:
            check_asked(offer, assignment)
            return None
        raise self.nonces.why_not(offer, present, in_round=offer.node_id in self.assignments)

    def silent(self) -> list[UpdateRecord]:
        """Records of nodes that sent no update."""
        return [
            UpdateRecord(
                node,
                refusal="TASK_FAILED" if node in self.failed else "NO_ANSWER",
                message=self.failed.get(node, "")[:LONGEST_MESSAGE],
            )
            for node, assignment in self.assignments.items()
            if assignment.nonce not in self.answers
        ]
