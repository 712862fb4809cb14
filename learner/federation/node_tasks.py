"""Submits and withdraws the tasks of a federation's nodes, and turns their outcomes into events for the rounds."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from parlmesh.exception_text import told_in_one_line
from parlmesh.v1 import task_pb2 as pb

from ..sources.scheduler_client import Dispatcher
from .rules import events
from .rules.events import Event
from .rules.records import LONGEST_MESSAGE, Assignment
from .rules.rounds import Rounds
from .task_specs import EVALUATE, NodesTask, evaluations_in, failures_in
from .transient_failures import Obstacle

if TYPE_CHECKING:
    from .masking.secure_sums import SecureSums

# The scheduler's reasons for a task that it has lost, and for one that no actor can run at the moment.
_ASK_AGAIN = ("TASK_LOST", "UNKNOWN_KIND")
_ASK_AGAIN_SECONDS = 1.0


class NodeTasks:
    """Tasks of one federation. Nothing is submitted between two lives: the rounds ask again when they resume."""

    def __init__(
        self,
        core: Rounds,
        obstacle: Obstacle,
        handle: Callable[[Event], None],
        ask: Callable[[Sequence[Assignment]], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._core = core
        self._obstacle = obstacle
        self._handle, self._ask, self._spawn = handle, ask, spawn
        self.sums: SecureSums | None = None
        """Takes the outcomes of secure steps."""
        self._open: dict[str, NodesTask] = {}
        self._dispatcher: Dispatcher | None = None

    def begin(self, dispatcher: Dispatcher) -> None:
        """Starts a life, with no tasks."""
        self._dispatcher = dispatcher
        self._open.clear()

    def end(self) -> None:
        """Ends a life."""
        self._dispatcher = None

    def submit(self, tasks: Sequence[NodesTask]) -> None:
        """Submits tasks for nodes."""
        if self._dispatcher is not None:
            names = self._dispatcher.submit([task.spec for task in tasks])
            self._open.update(zip(names, tasks, strict=True))

    def of_nodes(self, nodes: Sequence[str]) -> list[str]:
        """Ids of the open tasks of any of these nodes."""
        unwanted = set(nodes)
        return [task_id for task_id, task in self._open.items() if unwanted & set(task.nodes)]

    async def withdraw(self, task_ids: Sequence[str]) -> None:
        """Cancels tasks, whose outcomes are no longer waited for."""
        for task_id in task_ids:
            self._open.pop(task_id, None)
        if task_ids and self._dispatcher is not None:
            await self._dispatcher.cancel(list(task_ids))

    async def withdraw_all(self) -> None:
        """Withdraws all open tasks: the federation has ended."""
        await self.withdraw(list(self._open))

    def take(self, outcome: pb.Outcome) -> None:
        """Handles an outcome; those of withdrawn tasks are ignored."""
        task = self._open.pop(outcome.task_id, None)
        if task is None:
            return
        succeeded = outcome.state == pb.TASK_STATE_SUCCEEDED
        again = not succeeded and outcome.failure.reason in _ASK_AGAIN
        if task.step:
            if again:
                self._spawn(self._prepare_again(task, outcome.failure.reason))
            elif self.sums is not None:
                self.sums.outcome(task, outcome)
        elif task.spec.kind == EVALUATE:
            silent = [events.Evaluated(node, 0, {}) for node in task.nodes]
            self._evaluated(task, evaluations_in(outcome.result, task.nodes) if succeeded else silent)
        elif again:
            self._spawn(self._ask_again(task, outcome.failure.reason))
        else:
            self._fitted(task, outcome, succeeded=succeeded)

    def _fitted(self, task: NodesTask, outcome: pb.Outcome, *, succeeded: bool) -> None:
        failure = told_in_one_line(f"{outcome.failure.reason}: {outcome.failure.message}", LONGEST_MESSAGE)
        failed = failures_in(outcome.result, task.nodes) if succeeded else dict.fromkeys(task.nodes, failure)
        for node in task.nodes:
            nonce = task.nonces[node]
            if node in failed:
                self._handle(events.TaskFailed(node, task.number, failed[node], nonce))
            elif self._core.participants.waits_for(node, nonce):
                # The receipt of an update comes before the end of its task.
                self._handle(events.TaskFailed(node, task.number, "BAD_ANSWER: no update came", nonce, bad=True))

    def _evaluated(self, task: NodesTask, found: Sequence[events.Evaluated]) -> None:
        if task.number == self._core.version:
            for event in found:
                self._handle(event)

    async def _ask_again(self, task: NodesTask, reason: str) -> None:
        """The scheduler's trouble is not the nodes', so they are asked for the same updates until the round closes."""
        await self._wait_out(task, reason)
        who = self._core.participants
        open_ = [who.assignments[node] for node in task.nodes if who.waits_for(node, task.nonces[node])]
        if open_:
            self._ask(open_)

    async def _prepare_again(self, task: NodesTask, reason: str) -> None:
        """Like `_ask_again`; nodes repeat the same answer to a step, and answers to an ended step are ignored."""
        await self._wait_out(task, reason)
        if task.number == self._core.round:
            self.submit([task])

    async def _wait_out(self, task: NodesTask, reason: str) -> None:
        self._obstacle.pause(f"the scheduler answers {reason} to a task of {len(task.nodes)} nodes")
        await asyncio.sleep(_ASK_AGAIN_SECONDS)
