"""Experience from a fleet: rollouts and evaluations as tasks of the scheduler."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import grpc.aio

from parlmesh.errors import FleetError, Unavailable
from parlmesh.telemetry import get_logger
from parlmesh.types import Array, Search
from parlmesh.v1 import task_pb2 as pb
from parlmesh.wire import payload_from_proto, payload_to_proto

from .. import metrics
from ..config import ExperienceConfig, TrainingConfig
from ..experience.asked_rollouts import AskedRollouts
from ..policies.league import League
from .actor_listing import RolloutActors
from .experience_source import Evaluation, MatchResult
from .idle_slots import crowded
from .reported_results import evaluation_of, match_of, told
from .rollout_failures import Failures
from .scheduler_client import Dispatcher

log = get_logger("parlmesh.learner")

_KIND = "rollout"
_LOOK_SECONDS = 10
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 0.5
# How long a task that is meant for one node waits for a slot there.
_NODE_SECONDS = 10.0
# Ends that are not the rollout's fault.
_INNOCENT = frozenset({"TASK_LOST", "QUEUE_TIMEOUT", "CANCELLED"})


@dataclass(frozen=True, slots=True)
class Listener:
    """The callbacks of the source to its run."""

    changed: Callable[[], None]
    """Something arrived or failed."""
    rollout_failed: Callable[[str, str], None]
    """A sentence, and a traceback or an empty text."""
    hopeless: Callable[[str], None]
    obstacle: Callable[[str], None]
    """Why no rollouts can be submitted now; empty when they can."""
    note: Callable[[str], None]
    """Advice that would help; empty if there is none."""


class FleetSource:
    """Asks through the scheduler; trajectories come back over ExperienceService, outcomes over WatchTasks."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        run_id: str,
        run_uid: str,
        config: TrainingConfig,
        experience: ExperienceConfig,
        listener: Listener,
        *,
        league: League | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._league = league
        self._run_id = run_id
        self._run_uid = run_uid
        self._config = config
        self._listener = listener
        self._clock = clock
        self._evaluations: dict[str, asyncio.Future[pb.Outcome]] = {}
        self._failures = Failures(config.max_failed_rollouts)
        self._actors = RolloutActors(channel, _KIND)
        self._look_soon = False
        self._last_failure = ""
        self._dispatcher = Dispatcher(channel, f"learner-{run_id}", self._settle, self._note_obstacle)
        self.asked = AskedRollouts(
            experience.rollout_timeout_seconds,
            node_of=self._actors.node_of,
            is_leftover=self._dispatcher.is_leftover,
            forgive=self._failures.forgive,
            clock=clock,
        )
        # Actors of an older release, which do not know run uids.
        self._old: set[str] = set()

    @property
    def outstanding(self) -> int:
        """Rollouts that have neither delivered nor ended."""
        return len(self.asked.outstanding)

    async def run(self) -> None:
        """Talks to the scheduler until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._dispatcher.run())
            group.create_task(self._look())

    async def request(self, count: int, min_version: int) -> None:
        """Submits one background task per trajectory."""
        # After rollouts that fail immediately, the next ones are requested after a pause.
        await asyncio.sleep(min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * self._failures.in_a_row))
        avoided = self._failures.avoided(self._clock()) | self._old
        specs = [self._rollout(min_version, self._actors.node_without(avoided)) for _ in range(count)]
        self.asked.ask(self._dispatcher.submit(specs))

    async def evaluate(self, version: int, seed: int, seconds: float) -> Evaluation:
        """Submits one task, as urgent as rollouts, and waits for it; cancels it if it takes too long.

        Nodes take turns to evaluate, so that no single node can claim that a goal is reached.
        """
        spec = self._evaluation(version, seed, seconds)
        evaluator = self._actors.evaluator(self._old)
        if evaluator:
            spec.placement.node_id = evaluator
            spec.queue_timeout.FromNanoseconds(round(min(_NODE_SECONDS, seconds / 2) * 1e9))
        try:
            outcome = await self._outcome(spec, seconds)
        except FleetError as error:
            if error.reason != "QUEUE_TIMEOUT":
                raise
            # The node has left or has no free slot, so any node may evaluate.
            outcome = await self._outcome(self._evaluation(version, seed, seconds), seconds)
        return evaluation_of(version, outcome)

    async def match(self, version: int, opponent: int, seed: int, seconds: float) -> MatchResult:
        """Submits one task and waits for it, as for an evaluation."""
        return match_of(version, opponent, await self._outcome(self._match(version, opponent, seed, seconds), seconds))

    async def _outcome(self, spec: pb.TaskSpec, seconds: float) -> pb.Outcome:
        (task_id,) = self._dispatcher.submit([spec])
        future = self._evaluations[task_id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                outcome: pb.Outcome = await future
        except TimeoutError:
            if why := self._dispatcher.refused.get(spec.kind):
                raise Unavailable(why) from None
            raise
        finally:
            del self._evaluations[task_id]
            if not future.done() or future.cancelled():
                await self._dispatcher.cancel([task_id])
        if outcome.state != pb.TASK_STATE_SUCCEEDED:
            sentence, traceback = told(outcome.failure)
            raise FleetError(sentence, reason=outcome.failure.reason, traceback=traceback)
        return outcome

    def tensors(self, *, untrained: int) -> dict[str, Array]:
        """Empty, because the actors' environments continue independently."""
        return {}

    async def close(self) -> None:
        """Cancels the rollouts that are no longer waited for."""
        if self.asked.outstanding:
            await self._dispatcher.cancel(sorted(self.asked.outstanding))
            self.asked.outstanding.clear()

    def _note_obstacle(self, _: str) -> None:
        """Tells the run only about refused rollouts: nothing else that is refused holds it up."""
        refused = self._dispatcher.refused
        self._listener.obstacle(refused.get(_KIND) or refused.get("") or "")

    async def _look(self) -> None:
        """Watches which actors can collect, and says when there are more slots than the run can use."""
        while True:
            await self._actors.look()
            # An actor that left may come back as another release.
            self._old &= self._actors.actors
            self._listener.note(crowded(self._actors.slots, self._config))
            self._give_up_if_hopeless()
            self._look_soon = False
            for _ in range(_LOOK_SECONDS):
                await asyncio.sleep(1.0)
                if self._look_soon:
                    break

    def _settle(self, outcome: pb.Outcome) -> None:
        evaluation = self._evaluations.get(outcome.task_id)
        if evaluation is not None:
            if not evaluation.done():
                evaluation.set_result(outcome)
            return
        end = self.asked.end(outcome.task_id, timed_out=outcome.failure.reason == "DEADLINE_EXCEEDED")
        if not end.heard_of:
            outcome = _kept_to_its_word(outcome)
        state, reason = pb.TaskState.Name(outcome.state).removeprefix("TASK_STATE_").lower(), outcome.failure.reason
        metrics.ROLLOUTS.labels("lost" if reason == "TASK_LOST" else state).inc()
        if end.slow:
            self._was_slow(outcome)
        elif outcome.state not in (pb.TASK_STATE_SUCCEEDED, pb.TASK_STATE_CANCELLED) and reason not in _INNOCENT:
            self._failed(outcome)
        if self._league is not None and outcome.state == pb.TASK_STATE_SUCCEEDED:
            self._league.take(payload_from_proto(outcome.result)[0])
        self._listener.changed()

    def _was_slow(self, outcome: pb.Outcome) -> None:
        log.warning("rollout_too_slow", actor_id=outcome.actor_id, advice="other actors are asked, if there are any")
        self._failures.rest(outcome.actor_id, self._clock())
        self._look_soon = True

    def _failed(self, outcome: pb.Outcome) -> None:
        failure, now = outcome.failure, self._clock()
        message, traceback = told(failure)
        timed_out = failure.reason == "DEADLINE_EXCEEDED"
        if timed_out:
            steps = f"{self._config.num_envs} x {self._config.trajectory_steps} steps"
            message += f"; the environment hangs, or {steps} need more than experience.rollout_timeout_seconds"
        log.warning("rollout_failed", reason=failure.reason, message=failure.message, actor_id=outcome.actor_id)
        if failure.reason == "INVALID_PARAMETERS" and "'run_uid'" in message and outcome.actor_id not in self._old:
            log.warning("old_actor", actor_id=outcome.actor_id, advice="other actors are asked, if there are any")
            self._old.add(outcome.actor_id)
        before = self._failures.avoided(now)
        self._failures.add(outcome.actor_id, now, timed_out=timed_out)
        if self._failures.avoided(now) - before:
            log.warning("actor_avoided", actor_id=outcome.actor_id, message=message)
        self._look_soon = True
        self._listener.rollout_failed(f"rollout on {outcome.actor_id or 'no actor'}: {message}", traceback)
        self._last_failure = message

    def _give_up_if_hopeless(self) -> None:
        if self._failures.hopeless(self._actors.actors, self._clock()):
            count = self._failures.in_a_row
            self._listener.hopeless(f"rollouts fail on the actors, {count} in a row: {self._last_failure}")

    @cached_property
    def _common(self) -> pb.Payload:
        """The common parameters of the run's rollouts."""
        config, discount = self._config, self._config.reward_discount
        return payload_to_proto(
            {
                "environment": config.environment.model_dump(),
                "num_envs": config.num_envs,
                "trajectory_steps": config.trajectory_steps,
                "fragments": 1,
                # Only a fleet without lag repeats a serial run.
                "restart_steps": 0 if config.max_policy_lag else config.restart_steps,
                "seed": config.seed,
                **({} if discount is None else {"reward_discount": discount}),
                **_search(config.search.in_rollouts()),
            }
        )

    def _rollout(self, min_version: int, node_id: str) -> pb.TaskSpec:
        differing = self._named({"min_policy_version": min_version})
        if self._league is not None and (shares := self._league.asked()):
            differing["opponents"] = [{"version": version, "share": share} for version, share in shares]
        # One attempt, because the run itself decides which actor to ask again.
        spec = pb.TaskSpec(kind=_KIND, payload=self._common, priority=pb.PRIORITY_BACKGROUND, max_attempts=1)
        spec.payload.parameters.update(differing)
        spec.run_timeout.FromNanoseconds(round(self.asked.deadline.seconds * 1e9))
        if node_id:
            spec.placement.node_id = node_id
            spec.queue_timeout.FromNanoseconds(round(_NODE_SECONDS * 1e9))
        return spec

    def _evaluation(self, version: int, seed: int, seconds: float) -> pb.TaskSpec:
        parameters = self._named(
            {
                "environment": self._config.environment.evaluated(),
                "episodes": self._config.evaluation_episodes,
                "seed": seed,
                "version": version,
                **({"sampled": True} if self._config.evaluation_play == "sampled" else {}),
                **_search(self._config.search.in_evaluations()),
            }
        )
        # No more urgent than rollouts: a fleet whose slots all evaluate collects nothing.
        spec = pb.TaskSpec(
            kind="evaluate", payload=payload_to_proto(parameters), priority=pb.PRIORITY_BACKGROUND, max_attempts=2
        )
        spec.run_timeout.FromNanoseconds(round(seconds * 1e9))
        return spec

    def _match(self, version: int, opponent: int, seed: int, seconds: float) -> pb.TaskSpec:
        parameters = self._named(
            {
                "environment": self._config.environment.evaluated(),
                "version": version,
                "opponent": opponent,
                "games": self._config.opponents.match_games,
                "seed": seed,
                **_search(self._config.search.in_evaluations()),
            }
        )
        spec = pb.TaskSpec(
            kind="match", payload=payload_to_proto(parameters), priority=pb.PRIORITY_BACKGROUND, max_attempts=2
        )
        spec.run_timeout.FromNanoseconds(round(seconds * 1e9))
        return spec

    def _named(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        uid = {"run_uid": self._run_uid} if self._run_uid and not self._all_old else {}
        return {"run_id": self._run_id, **uid, **parameters}

    @property
    def _all_old(self) -> bool:
        """Whether no present actor knows uids. A single actor that claims so harms only itself."""
        present = self._actors.actors
        return bool(self._old) and bool(present) and self._old >= present


def _kept_to_its_word(outcome: pb.Outcome) -> pb.Outcome:
    """The outcome of a rollout without a trajectory: success is taken as a failure, because it needs a receipt."""
    if outcome.state != pb.TASK_STATE_SUCCEEDED:
        return outcome
    failure = pb.Failure(reason="NOTHING_SENT", message="the actor reported success, but no trajectory came")
    return pb.Outcome(task_id=outcome.task_id, state=pb.TASK_STATE_FAILED, actor_id=outcome.actor_id, failure=failure)


def _search(search: Search | None) -> dict[str, Any]:
    """Left out without a search, because older actors do not know the parameter."""
    return {} if search is None else {"search": asdict(search)}
