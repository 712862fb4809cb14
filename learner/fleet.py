"""Experience from a fleet: rollouts and evaluations as tasks of the scheduler."""

import asyncio
from collections.abc import Callable

import grpc.aio

from parlmesh.errors import FleetError
from parlmesh.telemetry import get_logger
from parlmesh.types import Array
from parlmesh.v1 import task_pb2 as pb
from parlmesh.wire import payload_from_proto, payload_to_proto

from . import metrics
from .config import ExperienceConfig, TrainingConfig
from .dispatch import Dispatcher
from .source import Evaluation

log = get_logger("parlmesh.learner")

# So many failures with no success between them are not an accident.
_MAX_FAILED_IN_A_ROW = 50


class FleetSource:
    """Asks through the scheduler; trajectories come back over ExperienceService, outcomes over WatchTasks."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        run_id: str,
        run_uid: str,
        config: TrainingConfig,
        experience: ExperienceConfig,
        *,
        on_change: Callable[[], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._run_id = run_id
        self._run_uid = run_uid
        self._config = config
        self._experience = experience
        self._on_change = on_change
        self._on_failure = on_failure
        self._rollouts: set[str] = set()
        self._evaluations: dict[str, asyncio.Future[pb.Outcome]] = {}
        self._failed_in_a_row = 0
        self._dispatcher = Dispatcher(channel, f"learner-{run_id}", self._settle)

    @property
    def outstanding(self) -> int:
        """Rollouts that have neither delivered nor ended."""
        return len(self._rollouts)

    async def run(self) -> None:
        """Talks to the scheduler until cancelled."""
        await self._dispatcher.run()

    async def request(self, count: int, min_version: int) -> None:
        """Submits one background task per trajectory."""
        specs = [self._rollout(min_version) for _ in range(count)]
        self._rollouts.update(self._dispatcher.submit(specs))

    def delivered(self, task_id: str) -> None:
        """The trajectory of a rollout is here; its outcome may follow later."""
        self._rollouts.discard(task_id)

    async def evaluate(self, version: int, seed: int) -> Evaluation:
        """Submits one task of normal priority and waits for it; the caller's deadline bounds the wait."""
        (task_id,) = self._dispatcher.submit([self._evaluation(version, seed)])
        future = self._evaluations[task_id] = asyncio.get_running_loop().create_future()
        try:
            outcome = await future
        finally:
            del self._evaluations[task_id]
        if outcome.state != pb.TASK_STATE_SUCCEEDED:
            raise FleetError(outcome.failure.message, reason=outcome.failure.reason)
        result, _ = payload_from_proto(outcome.result)
        return Evaluation(
            version=version,
            mean_return=float(result["mean_return"]),
            min_return=float(result["min_return"]),
            max_return=float(result["max_return"]),
            episodes=int(result["episodes"]),
        )

    def tensors(self, *, untrained: int) -> dict[str, Array]:
        """Nothing: the actors' environments go on by themselves."""
        return {}

    async def close(self) -> None:
        """Takes back what nobody waits for any more."""
        if self._rollouts:
            await self._dispatcher.cancel(sorted(self._rollouts))
            self._rollouts.clear()

    def _settle(self, outcome: pb.Outcome) -> None:
        evaluation = self._evaluations.get(outcome.task_id)
        if evaluation is not None:
            if not evaluation.done():
                evaluation.set_result(outcome)
            return
        self._rollouts.discard(outcome.task_id)
        metrics.ROLLOUTS.labels(pb.TaskState.Name(outcome.state).removeprefix("TASK_STATE_").lower()).inc()
        if outcome.state == pb.TASK_STATE_SUCCEEDED:
            self._failed_in_a_row = 0
        elif outcome.state != pb.TASK_STATE_CANCELLED:
            self._failed_in_a_row += 1
            log.warning("rollout_failed", reason=outcome.failure.reason, message=outcome.failure.message)
            if self._failed_in_a_row >= _MAX_FAILED_IN_A_ROW or outcome.failure.reason == "INVALID_PARAMETERS":
                self._on_failure(f"rollouts fail on the actors: {outcome.failure.message}")
        self._on_change()

    def _rollout(self, min_version: int) -> pb.TaskSpec:
        parameters = {
            "run_id": self._run_id,
            "environment": self._config.environment.model_dump(),
            "num_envs": self._config.num_envs,
            "fragment_steps": self._config.fragment_steps,
            "fragments": 1,
            "restart_steps": self._config.restart_steps,
            "seed": self._config.seed,
            "min_policy_version": min_version,
            "run_uid": self._run_uid,
        }
        spec = pb.TaskSpec(
            kind="rollout", payload=payload_to_proto(parameters), priority=pb.PRIORITY_BACKGROUND, max_attempts=5
        )
        spec.run_timeout.FromNanoseconds(round(self._experience.rollout_timeout_seconds * 1e9))
        return spec

    def _evaluation(self, version: int, seed: int) -> pb.TaskSpec:
        parameters = {
            "run_id": self._run_id,
            "environment": self._config.environment.model_dump(),
            "episodes": self._config.evaluation_episodes,
            "seed": seed,
            "version": version,
            "run_uid": self._run_uid,
        }
        return pb.TaskSpec(
            kind="evaluate", payload=payload_to_proto(parameters), priority=pb.PRIORITY_NORMAL, max_attempts=3
        )
