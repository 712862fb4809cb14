"""The present state of a federation: any module may read it, only the rounds change it. Pure."""

from collections.abc import Sequence

from parlmesh.federation.config import FederationConfig

from .asynchronous_rounds import may_answer_again
from .evaluation import Evaluation
from .events import Stop
from .history import History
from .masked_round import MaskedRound
from .nodes.eligibility import Eligibility
from .nodes.participants import Participants
from .nodes.privacy_budget import Spending
from .phase import Phase, wait_seconds
from .records import Answer, Assignment, Counted, FederationState, Offer


class Progress:
    """The state of one federation, and questions about it."""

    def __init__(self, config: FederationConfig) -> None:
        self.config = config
        self.phase = Phase.WAITING
        self.state = FederationState.RUNNING
        self.reason = ""
        self.version = 1
        self.digest = ""
        self.round = 0
        self.aggregated = 0
        self.history = History()
        self.participants = Participants()
        self.deadline = 0.0
        self.eligibility = Eligibility(config)
        self.wanted = 0
        self.abandoned_in_a_row = 0
        self.started = 0.0
        self.able_nodes: tuple[str, ...] = ()
        self.counted: tuple[Counted, ...] = ()
        self.evaluation = Evaluation()
        self.stop: Stop | None = None
        self.entropy = ""
        self.wall_time = 0.0
        # Used in secure rounds.
        self.masking = MaskedRound()

    @property
    def nodes(self) -> int:
        """Number of nodes that were ever connected for a round."""
        return len(self.participants.numbers)

    @property
    def assignments(self) -> dict[str, Assignment]:
        """The requests to the nodes of the round, by node."""
        return self.participants.assignments

    @property
    def answers(self) -> dict[str, Answer]:
        """Updates that were accepted in the round, by nonce."""
        return self.participants.answers

    def number_of(self, node_id: str) -> int:
        """The permanent number of a node, from 1 in the order in which they first connected."""
        return self.participants.numbers[node_id]

    @property
    def spending(self) -> Spending:
        """The privacy spent so far."""
        return self.eligibility.spending

    def counts(self, nonce: str) -> bool:
        """Whether the update with this nonce is part of the version that is being made."""
        answer = self.answers.get(nonce)
        return answer is not None and any(counted.slot == answer.slot for counted in self.counted)

    def postpone(self, now: float) -> None:
        """Starts the present wait over. This is not journalled: a replay without it ends the same."""
        seconds = wait_seconds(self.phase, self.config)
        if seconds is not None:
            self.deadline = now + seconds

    def enter(self, phase: Phase, now: float) -> None:
        """Starts the next phase and its wait."""
        self.phase = phase
        self.postpone(now)

    def idle(self, nodes: Sequence[str]) -> list[str]:
        """The nodes among these that have no assignment and that a buffer may ask."""
        known, config = self.assignments, self.config
        return [node for node in nodes if node not in known and may_answer_again(node, self.answers, config)]

    def may_ask(self, nodes: Sequence[str]) -> bool:
        """Whether a buffer may ask any of these nodes."""
        return bool(self.idle(self.eligibility.able(nodes, self.round + 1)))

    @property
    def would_suffer(self) -> bool:
        """Whether the end of the present wait would count against the federation."""
        if self.phase in (Phase.WAITING, Phase.PREPARING, Phase.UNMASKING):
            return True
        return self.phase is Phase.COLLECTING and self.stop is None and len(self.answers) < self.config.fewest_updates

    def check(self, offer: Offer) -> Answer | None:
        """Whether an update's data is wanted: None = yes, an answer = it is already here; FleetError = no."""
        collecting = self.phase is Phase.COLLECTING or (self.config.buffer_size and self.phase is not Phase.ENDED)
        return self.participants.check(offer, self.round, collecting=bool(collecting))

    def used_slots(self) -> set[int]:
        """Slots of the spool that accepted updates occupy."""
        answers = self.participants.kept()
        return {answer.slot for answer in answers} | {counted.slot for counted in self.counted}

    def busy_nodes(self) -> list[str]:
        """Nodes that were asked for something and have not answered."""
        match self.phase:
            case Phase.COLLECTING:
                return [each.node_id for each in self.participants.unsettled()]
            case Phase.EVALUATING:
                return list(self.evaluation.waiting)
            case _:
                return []
