"""A federation as a state machine: events in, actions out. No I/O, no clock, no gRPC.

waiting -> collecting -> aggregating -> (evaluating) -> waiting ... A secure round is preparing before it collects, and
unmasking before it aggregates. With a buffer (FedBuff), collecting never pauses: a node that has answered is asked
again at once, and every `buffer_size` updates make a version.
"""

from parlmesh.federation.secure.fixed_point import MOST_NODES

from . import events
from .asynchronous_rounds import check_staleness, is_full, may_answer_again
from .counted_updates import Closing, close, why_failed
from .evaluation import Evaluation, evaluators
from .events import Action, Event
from .masked_round import KEYS, SHARES, MaskedRound
from .nodes.node_strikes import BAD_REASONS
from .nodes.selection import select
from .phase import Phase
from .progress import Progress
from .records import Answer, Assignment, FederationState, Offer, RoundRecord, RoundState
from .snapshot import restore
from .update_checks import check_values


class Rounds(Progress):
    """The decisions of one federation. Only events change its state, and the same events give the same state."""

    def handle(self, event: Event, now: float) -> list[Action]:
        """Takes an event and returns the actions; FleetError when an update is refused."""
        if isinstance(event, events.Restored):
            restore(self, event.state)
            return []
        if self.phase is Phase.ENDED:
            return []
        match event:
            case events.Begin():
                return self._begin(event, now)
            case events.Delivered(answer):
                return self._deliver(answer, now)
            case events.Refused():
                self.history.of(event.round, self.version).refuse(event.node_id, event.reason, event.message)
                if event.reason == "ANSWERED_TWICE":
                    # The second update has left the node all the same.
                    self.spending.ask(event.node_id)
                if event.reason in BAD_REASONS:
                    self._strike(event.node_id, f"{event.reason}: {event.message}")
                return []
            case events.TaskFailed():
                return self._task_failed(event, now)
            case events.Prepared():
                return self._prepared(event, now)
            case events.NotUnmasked():
                return self._not_unmasked(event, now)
            case events.Damaged(nonce):
                if self.phase is Phase.UNMASKING:
                    return self._abandon(None, now, "a masked update was damaged on disk")
                if self.phase is Phase.AGGREGATING and self.counts(nonce):
                    return self._abandon(None, now, "an update that counted was damaged on disk")
                self.participants.take_back(nonce)
                return []
            case events.Aggregated():
                return self._aggregated(event, now)
            case events.Evaluated():
                return self._evaluated(event, now)
            case events.Tick():
                return self._tick(now)
            case events.Stop():
                return self._stopped(event, now)

    def resume(self, now: float) -> list[Action]:
        """The actions to repeat after a restart; waits start over."""
        self.postpone(now)
        open_ = self.participants.unsettled()
        # With a buffer, nodes work in every phase.
        asked: list[Action] = [events.Ask(open_)] if open_ and self.config.buffer_size else []
        match self.phase:
            case Phase.WAITING:
                return [*asked, events.SeekNodes()]
            case Phase.PREPARING:
                silent = self.masking.silent(self.participants)
                return [events.Prepare(self.masking.step, silent)] if silent else self._prepare_next(now)
            case Phase.COLLECTING:
                return [events.Ask(open_)] if open_ else self._maybe_close(now)
            case Phase.UNMASKING:
                return [events.Unmask(self.round, self.counted)]
            case Phase.AGGREGATING:
                return [*asked, events.Aggregate(self.round, self.counted)]
            case Phase.EVALUATING:
                return [*asked, events.AskEvaluation(self.version, self.evaluation.waiting)]
            case Phase.ENDED:
                return []

    def _begin(self, event: events.Begin, now: float) -> list[Action]:
        self.wall_time = event.wall_time
        connected, self.entropy = tuple(sorted(event.nodes)), event.entropy
        self.participants.number(connected)
        self.able_nodes = self.eligibility.able(connected, self.round + 1)
        if self.config.buffer_size:
            return self._begin_buffered(now)
        if self.phase is not Phase.WAITING:
            return []
        if len(self.able_nodes) < self.config.quorum <= len(connected):
            return self._end(FederationState.STOPPED, self.spending.reason())
        most = MOST_NODES if self.config.secure.enabled else 0
        asked, self.wanted = select(self.able_nodes, self.config.selection, self.config.seed, self.round + 1, most)
        self._open_round(now)
        for node, why in self.eligibility.left_out(connected, self.able_nodes, self.round):
            self.history[-1].refuse(node, "LEFT_OUT", why)
        self.assignments.clear()
        assigned = tuple(self._assign(node) for node in asked)
        if not self.config.secure.enabled:
            return [events.Ask(assigned)]
        self.masking = MaskedRound()
        self.enter(Phase.PREPARING, now)
        return [events.Prepare(KEYS, assigned)]

    def _prepared(self, event: events.Prepared, now: float) -> list[Action]:
        assignment = self.assignments.get(event.node_id)
        if self.phase is not Phase.PREPARING or assignment is None or assignment.nonce != event.nonce:
            return []
        if event.node_id in self.participants.failed:
            return []
        self.masking.take(event.node_id, event.answer)
        return [] if self.masking.silent(self.participants) else self._prepare_next(now)

    def _prepare_next(self, now: float) -> list[Action]:
        """Ends a step and continues with the nodes that answered, if there are enough."""
        masking, seconds = self.masking, self.config.secure.step_seconds
        silent = tuple(each.node_id for each in masking.silent(self.participants))
        actions: list[Action] = [events.Withdraw(silent)] if silent else []
        for node in silent:
            self.participants.failed[node] = f"no {masking.step} came within {seconds:g} seconds"
        here = tuple(each for each in self.assignments.values() if each.node_id in masking.answered)
        needed = max(self.config.quorum, masking.threshold)
        if len(here) < needed:
            self._record_silent()
            reason = f"{len(here)} nodes gave their {masking.step}; a secure round needs {needed}"
            return [*actions, *self._abandon(None, now, reason)]
        if masking.step == KEYS:
            masking.ask_shares(self.config.secure)
            self.postpone(now)
            return [*actions, events.Prepare(SHARES, here)]
        self.enter(Phase.COLLECTING, now)
        return [*actions, events.Ask(here)]

    def _not_unmasked(self, event: events.NotUnmasked, now: float) -> list[Action]:
        if event.round != self.round or self.phase not in (Phase.UNMASKING, Phase.AGGREGATING):
            return []
        return self._abandon(None, now, event.message)

    def _begin_buffered(self, now: float) -> list[Action]:
        if self.phase is Phase.WAITING:
            self._open_round(now)
        if self.phase is not Phase.COLLECTING:
            return []
        if not self.able_nodes and not self.assignments:
            return self._end(FederationState.STOPPED, self.spending.reason())
        idle = self.idle(self.able_nodes)
        actions: list[Action] = [events.Ask(tuple(self._assign(node) for node in idle))] if idle else []
        return actions + self._maybe_close(now)

    def _strike(self, node_id: str, reason: str) -> None:
        """Strikes only nodes that were once connected for a round: others cannot be excluded."""
        if node_id in self.participants.numbers:
            self.eligibility.strikes.strike(node_id, reason, self.round)

    def _open_round(self, now: float) -> None:
        self.round += 1
        self.started = now
        self.enter(Phase.COLLECTING, now)
        self.participants.open_round()
        self.history.open(RoundRecord(self.round, self.version, self.wall_time))

    def _assign(self, node: str) -> Assignment:
        self.spending.ask(node)
        return self.participants.assign(node, self.entropy, self.round, self.version)

    def _accept(self, answer: Answer, *, early: bool = False) -> None:
        self.participants.accept(answer, early=early)
        self.eligibility.forgive(answer.node_id)

    def _deliver(self, answer: Answer, now: float) -> list[Action]:
        offer = Offer(answer.node_id, answer.round, answer.base_version, answer.nonce, answer.samples, answer.digest)
        if self.check(offer) is not None:
            return []
        check_values(answer, self.config)
        if not self.config.buffer_size:
            self._accept(answer)
            return self._maybe_close(now)
        check_staleness(answer, self.version, self.config)
        del self.assignments[answer.node_id]
        if self.phase is not Phase.COLLECTING:
            self._accept(answer, early=True)
            return []
        self._accept(answer)
        # The node is asked again immediately, unless a new version is about to be made.
        closed, node = self._maybe_close(now), answer.node_id
        if closed or not self.spending.affords(node) or not may_answer_again(node, self.answers, self.config):
            return closed
        return [events.Ask((self._assign(node),))]

    def _task_failed(self, event: events.TaskFailed, now: float) -> list[Action]:
        assignment = self.assignments.get(event.node_id)
        if assignment is None or assignment.round != event.round or self.participants.settled(event.node_id):
            return []
        if event.nonce and event.nonce != assignment.nonce:
            return []
        if event.bad:
            self._strike(event.node_id, event.message)
        if self.config.buffer_size:
            # This applies in any phase: the node is asked again when nodes are next looked at.
            del self.assignments[event.node_id]
            self.history[-1].refuse(event.node_id, "TASK_FAILED", event.message)
            return []
        if self.phase is Phase.PREPARING:
            self.participants.failed[event.node_id] = event.message
            return [] if self.masking.silent(self.participants) else self._prepare_next(now)
        if self.phase is not Phase.COLLECTING:
            return []
        self.participants.failed[event.node_id] = event.message
        return self._maybe_close(now)

    def _maybe_close(self, now: float) -> list[Action]:
        if self.config.buffer_size:
            return self._close(now) if is_full(self.answers, self.config) else []
        if len(self.answers) >= self.wanted or self.participants.all_settled:
            return self._close(now)
        return []

    def _close(self, now: float) -> list[Action]:
        record = self.history[-1]
        closing = close(list(self.answers.values()), self.config, self.version)
        said = list(closing.records)
        actions: list[Action] = []
        record.add(said)
        if not self.config.buffer_size:
            open_ = self._record_silent()
            if open_:
                actions.append(events.Withdraw(open_))
        record.metrics.update(closing.metrics)
        fewest = max(self.config.fewest_updates, self.masking.threshold)
        if len(closing.counted) < fewest or closing.voters < self.config.rule.fewest_voters:
            return [*actions, *self._abandon(closing, now)]
        self.counted = closing.counted
        if self.config.secure.enabled:
            self.enter(Phase.UNMASKING, now)
            return [*actions, events.Unmask(self.round, self.counted)]
        self.abandoned_in_a_row = 0
        self.phase = Phase.AGGREGATING
        return [*actions, events.Aggregate(self.round, self.counted)]

    def _record_silent(self) -> tuple[str, ...]:
        """Adds nodes that sent no update to the history; returns those whose tasks are still open."""
        silent = self.participants.silent()
        self.history[-1].add(silent)
        return tuple(each.node_id for each in silent if each.refusal == "NO_ANSWER")

    def _abandon(self, closing: Closing | None, now: float, reason: str = "") -> list[Action]:
        record = self.history[-1]
        record.state, record.seconds = RoundState.ABANDONED, now - self.started
        fewest = max(self.config.fewest_updates, self.masking.threshold)
        record.reason = reason or f"{len(closing.counted) if closing else 0} updates counted; {fewest} are needed"
        self.abandoned_in_a_row += 1
        for node in self.masking.accused(self.participants.failed):
            self.eligibility.exclude(node, "shares that no other node could open", self.round)
        self.answers.clear()
        self.counted = ()
        if self.abandoned_in_a_row >= self.config.max_abandoned and self.stop is None:
            text = why_failed(record, closing, self.config, self.abandoned_in_a_row, reason)
            return self._end(FederationState.FAILED, text)
        return self._next(now)

    def _aggregated(self, event: events.Aggregated, now: float) -> list[Action]:
        record = self.history[-1]
        record.state, record.seconds = RoundState.AGGREGATED, now - self.started
        record.policy_version, record.digest = event.version, event.digest
        record.metrics.update(event.metrics)
        self.version, self.digest = event.version, event.digest
        self.aggregated += 1
        self.abandoned_in_a_row = 0
        self.answers.clear()
        self.counted = ()
        if not self.config.buffer_size:
            self.assignments.clear()
        last = self.aggregated >= self.config.rounds or self.stop is not None
        self.evaluation = Evaluation(evaluators(self.able_nodes, self.config, self.aggregated, last=last))
        if not self.evaluation.over:
            self.enter(Phase.EVALUATING, now)
            return [events.AskEvaluation(self.version, self.evaluation.waiting)]
        return self._next(now)

    def _evaluated(self, event: events.Evaluated, now: float) -> list[Action]:
        if self.phase is not Phase.EVALUATING or not self.evaluation.take(event):
            return []
        if event.bad:
            self.history[-1].refuse(event.node_id, "BAD_ANSWER", event.bad)
            self._strike(event.node_id, event.bad)
        return self._end_evaluation(now) if self.evaluation.over else []

    def _end_evaluation(self, now: float) -> list[Action]:
        self.history[-1].metrics.update(self.evaluation.metrics())
        self.evaluation = Evaluation()
        return self._next(now)

    def _next(self, now: float) -> list[Action]:
        if self.stop is not None:
            state = FederationState.FAILED if self.stop.failed else FederationState.STOPPED
            return self._end(state, self.stop.reason)
        if self.aggregated >= self.config.rounds:
            return self._end(FederationState.FINISHED, f"all {self.config.rounds} rounds are done")
        if not self.spending.affords_round(self.aggregated):
            return self._end(FederationState.STOPPED, self.spending.reason())
        self.enter(Phase.WAITING, now)
        return [events.SeekNodes()]

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

    def _stopped(self, event: events.Stop, now: float) -> list[Action]:
        self.stop = event
        if self.phase is Phase.WAITING or event.failed or event.at_once:
            return self._next(now)
        return []

    def _end(self, state: FederationState, reason: str) -> list[Action]:
        self.phase, self.state, self.reason = Phase.ENDED, state, reason
        open_ = tuple(each.node_id for each in self.participants.unsettled())
        return [*([events.Withdraw(open_)] if open_ else []), events.End(state, reason)]
