"""A federation as a state machine: events in, actions out. No I/O, no clock, no gRPC.

waiting -> collecting -> aggregating -> (evaluating) -> waiting ... A secure round is preparing before it collects, and
unmasking before it aggregates. With a buffer (FedBuff) collecting never pauses: a
node that has answered is asked again at once, and every `buffer_size` updates make a version.
"""

import enum
from collections import Counter, deque
from collections.abc import Sequence

from parlmesh.errors import AlreadyExists
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.secure.fixed_point import MOST_NODES

from .closing import Closing, close
from .evaluation import Judging
from .events import (
    Action,
    Aggregate,
    Aggregated,
    Ask,
    AskEvaluation,
    Begin,
    Damaged,
    Delivered,
    End,
    Evaluated,
    Event,
    NotUnmasked,
    Prepare,
    Prepared,
    Refused,
    Restored,
    SeekNodes,
    Stop,
    TaskFailed,
    Tick,
    Unmask,
    Withdraw,
)
from .gate import check_values, refusal
from .masking import KEYS, SHARES, MaskedRound
from .records import (
    LONGEST_MESSAGE,
    Answer,
    Assignment,
    Counted,
    FederationState,
    Offer,
    RoundRecord,
    RoundState,
    UpdateRecord,
)
from .selection import Nonces, select
from .snapshot import restore
from .spending import Spending
from .strikes import BAD_REASONS, Strikes
from .voters import voter_of

KEPT_ROUNDS = 1_000
# What is said of single updates, over all rounds that are kept; the oldest rounds lose theirs first.
_MOST_RECORDS = 20_000


class Phase(enum.StrEnum):
    """What the federation waits for."""

    WAITING = "waiting"
    PREPARING = "preparing"
    COLLECTING = "collecting"
    UNMASKING = "unmasking"
    AGGREGATING = "aggregating"
    EVALUATING = "evaluating"
    ENDED = "ended"


class Rounds:
    """The decisions of one federation. `handle` alone changes it; the same events give the same state."""

    def __init__(self, config: FederationConfig) -> None:
        self.config = config
        self.phase = Phase.WAITING
        self.state = FederationState.RUNNING
        self.reason = ""
        self.version = 1
        self.digest = ""
        self.round = 0
        self.aggregated = 0
        self.history: deque[RoundRecord] = deque(maxlen=KEPT_ROUNDS)
        self.assignments: dict[str, Assignment] = {}
        self.answers: dict[str, Answer] = {}
        self.deadline = 0.0
        self._numbers: dict[str, int] = {}
        self._nonces = Nonces()
        self._failed: dict[str, str] = {}
        self._strikes = Strikes(config.gate.max_strikes)
        self.spending = Spending(config.privacy)
        self._wanted = 0
        self._abandoned_in_a_row = 0
        self._started = 0.0
        self._nodes: tuple[str, ...] = ()
        self._counted: tuple[Counted, ...] = ()
        self._judging = Judging()
        self._stop: Stop | None = None
        self._entropy = ""
        self._wall_time = 0.0
        # Accepted while no buffer is open.
        self._early: dict[str, Answer] = {}
        # Of a secure round.
        self.masking = MaskedRound()

    @property
    def nodes(self) -> int:
        """Nodes that were ever asked."""
        return len(self._numbers)

    def number_of(self, node_id: str) -> int:
        """1 for the first node that was ever there; it stays with the node."""
        return self._numbers[node_id]

    def handle(self, event: Event, now: float) -> list[Action]:
        """What is to be done about it; FleetError when an update is refused."""
        if isinstance(event, Restored):
            restore(self, event.state)
            return []
        if self.phase is Phase.ENDED:
            return []
        match event:
            case Begin():
                return self._begin(event, now)
            case Delivered(answer):
                return self._deliver(answer, now)
            case Refused():
                self._record_of(event.round).refuse(event.node_id, event.reason, event.message)
                if event.reason == "ANSWERED_TWICE":
                    # It has left the node all the same.
                    self.spending.ask(event.node_id)
                if event.reason in BAD_REASONS:
                    self._strike(event.node_id, f"{event.reason}: {event.message}")
                return []
            case TaskFailed():
                return self._task_failed(event, now)
            case Prepared():
                return self._prepared(event, now)
            case NotUnmasked():
                return self._not_unmasked(event, now)
            case Damaged(nonce):
                if self.phase is Phase.UNMASKING:
                    return self._abandon(None, now, "a masked update was damaged on disk")
                if self.phase is Phase.AGGREGATING and self._counts(nonce):
                    return self._abandon(None, now, "an update that counted was damaged on disk")
                self.answers.pop(nonce, None)
                self._early.pop(nonce, None)
                self._nonces.take_back(nonce)
                return []
            case Aggregated():
                return self._aggregated(event, now)
            case Evaluated():
                return self._evaluated(event, now)
            case Tick():
                return self._tick(now)
            case Stop():
                return self._stopped(event, now)

    def _counts(self, nonce: str) -> bool:
        answer = self.answers.get(nonce)
        return answer is not None and any(counted.slot == answer.slot for counted in self._counted)

    def resume(self, now: float) -> list[Action]:
        """What must be done again after a restart; waits start over."""
        open_ = tuple(a for node, a in self.assignments.items() if not self._settled(node))
        # With a buffer nodes are at work in every phase.
        asked: list[Action] = [Ask(open_)] if open_ and self.config.buffer_size else []
        match self.phase:
            case Phase.WAITING:
                self.deadline = now + self.config.wait_seconds
                return [*asked, SeekNodes()]
            case Phase.PREPARING:
                self.deadline = now + self.config.secure.step_seconds
                silent = self._silent()
                return [Prepare(self.masking.step, silent)] if silent else self._prepare_next(now)
            case Phase.COLLECTING:
                self.deadline = now + self.config.round_seconds
                return [Ask(open_)] if open_ else self._maybe_close(now)
            case Phase.UNMASKING:
                self.deadline = now + self.config.secure.step_seconds
                return [Unmask(self.round, self._counted)]
            case Phase.AGGREGATING:
                return [*asked, Aggregate(self.round, self._counted)]
            case Phase.EVALUATING:
                self.deadline = now + self.config.evaluation.seconds
                return [*asked, AskEvaluation(self.version, self._judging.waiting)]
            case Phase.ENDED:
                return []

    def postpone(self, now: float) -> None:
        """Waits start over: what was waited for could not come. A replay without it ends the same."""
        seconds = {
            Phase.WAITING: self.config.wait_seconds,
            Phase.PREPARING: self.config.secure.step_seconds,
            Phase.COLLECTING: self.config.round_seconds,
            Phase.UNMASKING: self.config.secure.step_seconds,
            Phase.EVALUATING: self.config.evaluation.seconds,
        }
        if self.phase in seconds:
            self.deadline = now + seconds[self.phase]

    def able(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Those that may be asked: without the ones that were left out, unless too few would remain."""
        nodes = tuple(node for node in nodes if self.spending.affords(node))
        good = tuple(node for node in nodes if not self._strikes.out(voter_of(node, self.config), self.round + 1))
        return good if len(good) >= self.config.selection.min_nodes else nodes

    def lists(self, number: int, node_id: str) -> bool:
        """Whether one more refusal of a node in a round is listed; one that is not is only counted."""
        if not self.history:
            return True
        record = self._record_of(number)
        if not record.takes(node_id):
            record.unrecorded += 1
            return False
        return True

    def idle(self, nodes: Sequence[str]) -> bool:
        """Whether a buffer that is open has nobody at work on some of them."""
        return any(node not in self.assignments and self._may_answer_again(node) for node in self.able(nodes))

    @property
    def would_suffer(self) -> bool:
        """Whether the end of the present wait would count against the federation."""
        if self.phase in (Phase.WAITING, Phase.PREPARING, Phase.UNMASKING):
            return True
        return self.phase is Phase.COLLECTING and self._stop is None and len(self.answers) < self.config.fewest_updates

    def waits_for(self, node_id: str, nonce: str) -> bool:
        """Whether the update with this nonce has not come."""
        assignment = self.assignments.get(node_id)
        return assignment is not None and assignment.nonce == nonce and not self._settled(node_id)

    def check(self, offer: Offer) -> Answer | None:
        """Whether the data of an update is wanted: None = yes; the answer = it is here already. FleetError = no."""
        known = self.answers.get(offer.nonce) or self._early.get(offer.nonce)
        if known is not None and known.node_id == offer.node_id:
            if known.digest == offer.digest:
                return known
            raise AlreadyExists(
                f"node {offer.node_id} has answered round {offer.round} with another update", reason="ANSWERED_TWICE"
            )
        assignment = self.assignments.get(offer.node_id)
        collecting = self.phase is Phase.COLLECTING or (self.config.buffer_size and self.phase is not Phase.ENDED)
        if collecting and assignment is not None and assignment.round == offer.round:
            if assignment.nonce != offer.nonce:
                raise refusal("WRONG_NONCE", f"the nonce is not that of node {offer.node_id} in round {offer.round}")
            if assignment.base_version != offer.base_version:
                raise refusal(
                    "WRONG_BASE", f"the update must be to version {assignment.base_version}, got {offer.base_version}"
                )
            return None
        raise self._nonces.why_not(offer, self.round, in_round=offer.node_id in self.assignments)

    def used_slots(self) -> set[int]:
        """Places in the spool that accepted updates have."""
        answers = (*self.answers.values(), *self._early.values())
        return {answer.slot for answer in answers} | {counted.slot for counted in self._counted}

    def busy_nodes(self) -> list[str]:
        """Nodes that were asked for something and have not answered."""
        match self.phase:
            case Phase.COLLECTING:
                return [node for node in self.assignments if not self._settled(node)]
            case Phase.EVALUATING:
                return list(self._judging.waiting)
            case _:
                return []

    def kept_answers(self) -> list[Answer]:
        """Accepted and not yet aggregated."""
        return [*self.answers.values(), *self._early.values()]

    def _begin(self, event: Begin, now: float) -> list[Action]:
        self._wall_time = event.wall_time
        connected, self._entropy = tuple(sorted(event.nodes)), event.entropy
        for node in connected:
            self._numbers.setdefault(node, len(self._numbers) + 1)
        self._nodes = self.able(connected)
        if self.config.buffer_size:
            return self._begin_buffered(now)
        if self.phase is not Phase.WAITING:
            return []
        if len(self._nodes) < self.config.quorum <= len(connected):
            return self._end(FederationState.STOPPED, self.spending.reason())
        most = MOST_NODES if self.config.secure.enabled else 0
        asked, self._wanted = select(self._nodes, self.config.selection, self.config.seed, self.round + 1, most)
        self._open_round(now)
        self._name_left_out(connected)
        self.assignments = {}
        assigned = tuple(self._assign(node) for node in asked)
        if not self.config.secure.enabled:
            return [Ask(assigned)]
        self.masking = MaskedRound()
        self.phase, self.deadline = Phase.PREPARING, now + self.config.secure.step_seconds
        return [Prepare(KEYS, assigned)]

    def _prepared(self, event: Prepared, now: float) -> list[Action]:
        assignment = self.assignments.get(event.node_id)
        if self.phase is not Phase.PREPARING or assignment is None or assignment.nonce != event.nonce:
            return []
        if event.node_id in self._failed:
            return []
        self.masking.take(event.node_id, event.answer)
        return [] if self._silent() else self._prepare_next(now)

    def _silent(self) -> tuple[Assignment, ...]:
        """Who has not answered the present step of a secure round."""
        known = (*self._failed, *self.masking.answered)
        return tuple(each for node, each in self.assignments.items() if node not in known)

    def _prepare_next(self, now: float) -> list[Action]:
        """The step is over: with who has answered, if those are enough."""
        masking, silent = self.masking, tuple(each.node_id for each in self._silent())
        actions: list[Action] = [Withdraw(silent)] if silent else []
        for node in silent:
            self._failed[node] = f"no {masking.step} came within {self.config.secure.step_seconds:g} seconds"
        here = tuple(each for each in self.assignments.values() if each.node_id in masking.answered)
        needed = max(self.config.quorum, masking.threshold)
        if len(here) < needed:
            self._record_silent()
            reason = f"{len(here)} nodes gave their {masking.step}; a secure round needs {needed}"
            return [*actions, *self._abandon(None, now, reason)]
        if masking.step == KEYS:
            masking.ask_shares(self.config.secure)
            self.deadline = now + self.config.secure.step_seconds
            return [*actions, Prepare(SHARES, here)]
        self.phase, self.deadline = Phase.COLLECTING, now + self.config.round_seconds
        return [*actions, Ask(here)]

    def _not_unmasked(self, event: NotUnmasked, now: float) -> list[Action]:
        if event.round != self.round or self.phase not in (Phase.UNMASKING, Phase.AGGREGATING):
            return []
        return self._abandon(None, now, event.message)

    def _begin_buffered(self, now: float) -> list[Action]:
        if self.phase is Phase.WAITING:
            self._open_round(now)
        if self.phase is not Phase.COLLECTING:
            return []
        if not self._nodes and not self.assignments:
            return self._end(FederationState.STOPPED, self.spending.reason())
        idle = [node for node in self._nodes if node not in self.assignments and self._may_answer_again(node)]
        actions: list[Action] = [Ask(tuple(self._assign(node) for node in idle))] if idle else []
        return actions + self._maybe_close(now)

    def _name_left_out(self, connected: Sequence[str]) -> None:
        asked = set(self._nodes)
        for node in connected:
            if node not in asked:
                why = self._strikes.out(voter_of(node, self.config), self.round)
                self.history[-1].refuse(node, "LEFT_OUT", why)

    def _strike(self, node_id: str, reason: str) -> None:
        """Only against nodes that were ever asked: others cannot be left out."""
        if node_id in self._numbers:
            self._strikes.bad(voter_of(node_id, self.config), reason, self.round)

    def _open_round(self, now: float) -> None:
        self.round += 1
        self.phase = Phase.COLLECTING
        self._started, self.deadline = now, now + self.config.round_seconds
        self._failed = {}
        self.answers, self._early = self._early, {}
        self.history.append(RoundRecord(self.round, self.version, self._wall_time))
        listed = sum(len(record.updates) for record in self.history)
        for record in self.history:
            if listed <= _MOST_RECORDS:
                break
            listed -= len(record.updates)
            record.forget_updates()

    def _assign(self, node: str) -> Assignment:
        number = self._numbers[node]
        assignment = self._nonces.assign(self._entropy, node, number, self.round, self.version)
        self.assignments[node] = assignment
        self.spending.ask(node)
        return assignment

    def _accept(self, answer: Answer, answers: dict[str, Answer]) -> None:
        answers[answer.nonce] = answer
        self._nonces.accept(answer.nonce)
        self._strikes.good(voter_of(answer.node_id, self.config))

    def _deliver(self, answer: Answer, now: float) -> list[Action]:
        offer = Offer(answer.node_id, answer.round, answer.base_version, answer.nonce, answer.samples, answer.digest)
        if self.check(offer) is not None:
            return []
        check_values(answer, self.config)
        if not self.config.buffer_size:
            self._accept(answer, self.answers)
            return self._maybe_close(now)
        staleness = self.version - answer.base_version
        if staleness > self.config.max_staleness:
            raise refusal("STALE", f"the update is {staleness} versions old; the limit is {self.config.max_staleness}")
        del self.assignments[answer.node_id]
        if self.phase is not Phase.COLLECTING:
            self._accept(answer, self._early)
            return []
        self._accept(answer, self.answers)
        # Asked again at once, unless a new version is about to be there.
        closed = self._maybe_close(now)
        if closed or not self.spending.affords(answer.node_id) or not self._may_answer_again(answer.node_id):
            return closed
        return [Ask((self._assign(answer.node_id),))]

    def _task_failed(self, event: TaskFailed, now: float) -> list[Action]:
        assignment = self.assignments.get(event.node_id)
        if assignment is None or assignment.round != event.round or self._settled(event.node_id):
            return []
        if event.nonce and event.nonce != assignment.nonce:
            return []
        if event.bad:
            self._strike(event.node_id, event.message)
        if self.config.buffer_size:
            # In whatever phase: it is asked again when nodes are next looked at.
            del self.assignments[event.node_id]
            self.history[-1].refuse(event.node_id, "TASK_FAILED", event.message)
            return []
        if self.phase is Phase.PREPARING:
            self._failed[event.node_id] = event.message
            return [] if self._silent() else self._prepare_next(now)
        if self.phase is not Phase.COLLECTING:
            return []
        self._failed[event.node_id] = event.message
        return self._maybe_close(now)

    def _settled(self, node: str) -> bool:
        assignment = self.assignments.get(node)
        return node in self._failed or (assignment is not None and assignment.nonce in self.answers)

    def _maybe_close(self, now: float) -> list[Action]:
        if self.config.buffer_size:
            return self._close(now) if self._buffer_is_full() else []
        if len(self.answers) >= self._wanted:
            return self._close(now)
        # Asked of every update: the long look is only taken when the numbers allow it.
        possible = len(self.answers) + len(self._failed) >= len(self.assignments)
        if possible and all(self._settled(node) for node in self.assignments):
            return self._close(now)
        return []

    def _buffer_is_full(self) -> bool:
        if len(self.answers) < self.config.buffer_size:
            return False
        voters = {voter_of(answer.node_id, self.config) for answer in self.answers.values()}
        return len(voters) >= self.config.rule.fewest_voters

    def _may_answer_again(self, node_id: str) -> bool:
        """A node has one vote in a buffer whose updates are votes."""
        if not self.config.rule.by_votes:
            return True
        return all(answer.node_id != node_id for answer in self.answers.values())

    def _close(self, now: float) -> list[Action]:
        record = self.history[-1]
        closing = close(list(self.answers.values()), self.config, self.version)
        said = list(closing.records)
        actions: list[Action] = []
        record.add(said)
        if not self.config.buffer_size:
            open_ = self._record_silent()
            if open_:
                actions.append(Withdraw(open_))
        record.metrics.update(closing.metrics)
        fewest = max(self.config.fewest_updates, self.masking.threshold)
        if len(closing.counted) < fewest or closing.voters < self.config.rule.fewest_voters:
            return [*actions, *self._abandon(closing, now)]
        self._counted = closing.counted
        if self.config.secure.enabled:
            self.phase, self.deadline = Phase.UNMASKING, now + self.config.secure.step_seconds
            return [*actions, Unmask(self.round, self._counted)]
        self._abandoned_in_a_row = 0
        self.phase = Phase.AGGREGATING
        return [*actions, Aggregate(self.round, self._counted)]

    def _record_silent(self) -> tuple[str, ...]:
        """Nodes of the round that sent no update are in the history too; those whose tasks are still open."""
        silent = [node for node, assignment in self.assignments.items() if assignment.nonce not in self.answers]
        self.history[-1].add(
            [
                UpdateRecord(
                    node,
                    refusal="TASK_FAILED" if node in self._failed else "NO_ANSWER",
                    message=self._failed.get(node, "")[:LONGEST_MESSAGE],
                )
                for node in silent
            ]
        )
        return tuple(node for node in silent if node not in self._failed)

    def _abandon(self, closing: Closing | None, now: float, reason: str = "") -> list[Action]:
        record = self.history[-1]
        record.state, record.seconds = RoundState.ABANDONED, now - self._started
        fewest = max(self.config.fewest_updates, self.masking.threshold)
        record.reason = reason or f"{len(closing.counted) if closing else 0} updates counted; {fewest} are needed"
        self._abandoned_in_a_row += 1
        self.answers, self._counted = {}, ()
        if self._abandoned_in_a_row >= self.config.max_abandoned and self._stop is None:
            fewest, votes = self.config.fewest_updates, self.config.rule.fewest_voters
            needed = f"{fewest} updates" + (f" of {votes} voters" if votes > 1 else "")
            count, voters = (len(closing.counted), closing.voters) if closing is not None else (0, 0)
            had = f"{count}" + (f" of {voters}" if votes > 1 else "")
            refused = Counter(update.refusal for update in record.updates if update.refusal)
            why = ", ".join(f"{number} {word}" for word, number in sorted(refused.items()))
            text = f"{self._abandoned_in_a_row} rounds in a row had fewer than {needed}, the last {had}"
            text += f" (left out: {why})" if why else ""
            if reason:
                text = f"{self._abandoned_in_a_row} rounds in a row were abandoned, the last because {reason}"
            return self._end(FederationState.FAILED, text)
        return self._next(now)

    def _aggregated(self, event: Aggregated, now: float) -> list[Action]:
        record = self.history[-1]
        record.state, record.seconds = RoundState.AGGREGATED, now - self._started
        record.policy_version, record.digest = event.version, event.digest
        record.metrics.update(event.metrics)
        self.version, self.digest = event.version, event.digest
        self.aggregated += 1
        self._abandoned_in_a_row = 0
        self._counted, self.answers = (), {}
        if not self.config.buffer_size:
            self.assignments = {}
        interval = self.config.evaluation.interval_rounds
        last = self.aggregated >= self.config.rounds or self._stop is not None
        if self.config.privacy.mode != "none" and not self.config.evaluation.on_public_data:
            interval = 0
        if interval and self._nodes and (last or self.aggregated % interval == 0):
            most = self.config.evaluation.nodes
            self._judging = Judging(set(self._nodes[:most] if most else self._nodes))
            self.phase, self.deadline = Phase.EVALUATING, now + self.config.evaluation.seconds
            return [AskEvaluation(self.version, self._judging.waiting)]
        return self._next(now)

    def _evaluated(self, event: Evaluated, now: float) -> list[Action]:
        if self.phase is not Phase.EVALUATING or not self._judging.take(event):
            return []
        if event.bad:
            self.history[-1].refuse(event.node_id, "BAD_ANSWER", event.bad)
            self._strike(event.node_id, event.bad)
        return self._end_evaluation(now) if self._judging.over else []

    def _end_evaluation(self, now: float) -> list[Action]:
        self.history[-1].metrics.update(self._judging.metrics())
        self._judging = Judging()
        return self._next(now)

    def _next(self, now: float) -> list[Action]:
        if self._stop is not None:
            state = FederationState.FAILED if self._stop.failed else FederationState.STOPPED
            return self._end(state, self._stop.reason)
        if self.aggregated >= self.config.rounds:
            return self._end(FederationState.FINISHED, f"all {self.config.rounds} rounds are done")
        if not self.spending.affords_round(self.aggregated):
            return self._end(FederationState.STOPPED, self.spending.reason())
        self.phase, self.deadline = Phase.WAITING, now + self.config.wait_seconds
        return [SeekNodes()]

    def _tick(self, now: float) -> list[Action]:
        if now < self.deadline:
            return []
        match self.phase:
            case Phase.WAITING:
                needed, seconds = self.config.selection.min_nodes, self.config.wait_seconds
                text = f"fewer than {needed} nodes were connected for {seconds:g} seconds"
                return self._end(FederationState.FAILED, text)
            case Phase.PREPARING:
                return self._prepare_next(now)
            case Phase.UNMASKING:
                seconds = self.config.secure.step_seconds
                return self._abandon(None, now, f"too few nodes helped to unmask the sum within {seconds:g} seconds")
            case Phase.COLLECTING if self.config.buffer_size and not self.answers:
                return self._abandon(None, now)
            case Phase.COLLECTING:
                return self._close(now)
            case Phase.EVALUATING:
                return self._end_evaluation(now)
            case _:
                return []

    def _stopped(self, event: Stop, now: float) -> list[Action]:
        self._stop = event
        if self.phase is Phase.WAITING or event.failed or event.at_once:
            return self._next(now)
        return []

    def _end(self, state: FederationState, reason: str) -> list[Action]:
        self.phase, self.state, self.reason = Phase.ENDED, state, reason
        open_ = tuple(node for node in self.assignments if not self._settled(node))
        return [*([Withdraw(open_)] if open_ else []), End(state, reason)]

    def _record_of(self, number: int) -> RoundRecord:
        """The round that a refusal belongs to: the present one, unless it came late for its own."""
        if not self.history:
            self.history.append(RoundRecord(0, self.version, 0.0))
        for record in reversed(self.history):
            if record.number == number:
                return record
        return self.history[-1]
