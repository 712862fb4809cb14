"""Performs the steps of secure rounds: asks nodes, reads their answers, and reports when a sum is ready."""

from collections.abc import Callable, Sequence

from parlmesh.errors import InvalidInput
from parlmesh.exception_text import told_in_one_line
from parlmesh.federation.config import FederationConfig
from parlmesh.telemetry import get_logger
from parlmesh.v1 import task_pb2 as pb

from ..rules import events
from ..rules.events import Event
from ..rules.masked_round import REVEAL
from ..rules.phase import Phase
from ..rules.records import LONGEST_MESSAGE, Assignment, Counted
from ..rules.rounds import Rounds
from ..task_specs import NodesTask, failures_in, numbers_of
from .secure_tasks import answer_of, answers_in, revealed_in, step_tasks
from .unmasking import Unmasking

log = get_logger("parlmesh.learner")


class SecureSums:
    """The secure sums of one federation. What nodes reveal is kept only here, and only until the sum is made."""

    def __init__(
        self,
        federation_id: str,
        config: FederationConfig,
        core: Rounds,
        handle: Callable[[Event], None],
        submit: Callable[[Sequence[NodesTask]], None],
        ready: Callable[[Unmasking, Sequence[Counted]], None],
    ) -> None:
        self._federation_id, self._config, self._core = federation_id, config, core
        self._handle, self._submit, self._ready = handle, submit, ready
        self._unmasking: Unmasking | None = None
        self._counted: tuple[Counted, ...] = ()
        self._waiting: set[str] = set()
        self._doubted = False
        self.making = False
        """Whether a sum is being made; if so, no node is waited for."""

    def prepare(self, step: str, assignments: Sequence[Assignment]) -> None:
        """Asks for keys or shares."""
        self._submit(step_tasks(self._federation_id, self._config, step, self._core.masking, assignments))

    def unmask(self, number: int, counted: Sequence[Counted]) -> None:
        """Asks every node whose update arrived for what unmasks their sum."""
        survivors = sorted(each.node_id for each in counted)
        numbers = numbers_of(self._config, self._core.masking)
        self._unmasking = Unmasking(self._federation_id, number, self._core.masking, numbers, survivors)
        self._counted, self._waiting = tuple(counted), set(survivors)
        self.making = self._doubted = False
        asked = [self._core.assignments[node] for node in survivors]
        self._submit(
            step_tasks(self._federation_id, self._config, REVEAL, self._core.masking, asked, survivors=survivors)
        )

    def made(self) -> None:
        """Forgets the revealed shares: the sum has been recorded or abandoned."""
        if self._unmasking is not None and self._unmasking.liars:
            log.warning("wrong_shares", federation_id=self._federation_id, node_ids=sorted(self._unmasking.liars))
        self._unmasking, self.making = None, False

    def outcome(self, task: NodesTask, outcome: pb.Outcome) -> None:
        """Handles the outcome of one of these tasks."""
        succeeded = outcome.state == pb.TASK_STATE_SUCCEEDED
        failure = told_in_one_line(f"{outcome.failure.reason}: {outcome.failure.message}", LONGEST_MESSAGE)
        failed = failures_in(outcome.result, task.nodes) if succeeded else dict.fromkeys(task.nodes, failure)
        answers = answers_in(outcome.result) if succeeded else {}
        for node in task.nodes:
            if task.step == REVEAL:
                self._revealed(task, node, answers.get(node), failed.get(node, ""))
            elif node in failed:
                self._handle(events.TaskFailed(node, task.number, failed[node], task.nonces[node]))
            else:
                self._answered(task, node, answers.get(node))

    def _answered(self, task: NodesTask, node: str, found: object) -> None:
        masking = self._core.masking
        if self._core.phase is not Phase.PREPARING or (task.step, task.number) != (masking.step, self._core.round):
            return
        try:
            answer = answer_of(task.step, found, node, masking)
        except InvalidInput as error:
            text = f"{error.reason}: {error.message}"
            self._handle(events.TaskFailed(node, task.number, text, task.nonces[node], bad=True))
        else:
            self._handle(events.Prepared(node, task.nonces[node], answer))

    def _revealed(self, task: NodesTask, node: str, found: object, failure: str) -> None:
        unmasking = self._unmasking
        if unmasking is None or unmasking.number != task.number or self.making:
            return
        self._waiting.discard(node)
        try:
            if not failure:
                unmasking.take(node, *revealed_in(found))
        except InvalidInput as error:
            failure = error.message
        if failure:
            log.warning("node_did_not_unmask", federation_id=self._federation_id, node_id=node, message=failure)
        # One wrong share must not cost the round: if shares disagree, every node is waited for.
        if unmasking.complete and (not self._waiting or (not self._doubted and unmasking.agrees())):
            self.making = True
            self._ready(unmasking, self._counted)
        elif unmasking.complete and self._waiting:
            self._doubted = True
        elif not self._waiting:
            text = f"{unmasking.answers} of {len(unmasking.survivors)} nodes helped to unmask the sum, too few of them"
            self._unmasking = None
            self._handle(events.NotUnmasked(task.number, text))
