"""Evaluations of a run: one at a time, alongside the training, each with a deadline; a failed one costs only itself."""

import asyncio
import math
from collections.abc import Callable

from parlmesh.errors import FleetError
from parlmesh.rollouts import evaluation_seed
from parlmesh.telemetry import get_logger

from .. import metrics
from ..config import TrainingConfig
from ..files.disk_retry import Disk
from ..files.recorder import Recorder
from ..policies.league import League
from ..policies.registry import PolicyRegistry
from ..sources.experience_source import Evaluation, ExperienceSource
from .evaluation_deadline import evaluation_seconds
from .evaluation_result import Candidate, EvaluationResults
from .progress import Progress
from .update_accounting import Throughput

log = get_logger("parlmesh.learner")


class Evaluations:
    """Runs on the event loop. Calls `wake` when an evaluation has ended, and `changed` when the progress changes."""

    def __init__(
        self,
        config: TrainingConfig,
        progress: Progress,
        throughput: Throughput,
        registry: PolicyRegistry,
        results: EvaluationResults,
        recorder: Recorder,
        disk: Disk,
        *,
        league: League | None = None,
        wake: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        self._config = config
        self._progress = progress
        self._throughput = throughput
        self._registry = registry
        self._results = results
        self._recorder = recorder
        self._disk = disk
        self._league = league
        self._wake = wake
        self._changed = changed
        self._task: asyncio.Task[Evaluation | None] | None = None
        self._candidate: Candidate | None = None

    @property
    def under_way(self) -> bool:
        """Whether an evaluation has started and is not settled."""
        return self._task is not None

    @property
    def done(self) -> bool:
        """Whether an evaluation has ended and is not settled."""
        return self._task is not None and self._task.done()

    @property
    def due(self) -> bool:
        """Whether another evaluation should start."""
        return self._task is None and self._progress.steps >= self._progress.next_evaluation

    def start(self, source: ExperienceSource) -> None:
        """Starts an evaluation of the newest policy, which is kept even if the registry forgets it in the meantime."""
        progress = self._progress
        progress.next_evaluation = progress.steps + self._config.evaluation_interval_steps
        seed = evaluation_seed(self._config.seed, progress.updates)
        self._candidate = Candidate(self._registry.get("", progress.version).blob, progress.steps)
        self._task = asyncio.get_running_loop().create_task(self._evaluate(source, progress.version, seed))

    async def settle(self) -> None:
        """Takes in the result of an evaluation that is done."""
        assert self._task is not None
        assert self._candidate is not None
        evaluation, self._task = self._task.result(), None
        if evaluation is None:
            return
        best = self._results.decide(evaluation)
        await self._disk.write(self._results.keep, self._candidate, evaluation, best, self._rated(evaluation.version))
        if self._league is not None and self._league.passes(evaluation.version):
            await self._disk.write(self._results.promote, evaluation.version)
            self._league.promote(evaluation.version, self._candidate.blob.data)
            log.info("model_promoted", version=evaluation.version)
        metrics.EVALUATIONS.labels("done").inc()
        metrics.EVALUATION_RETURN.set(evaluation.mean_return)
        steps = self._progress.steps
        self._recorder.record(
            steps,
            {
                "return/evaluation": evaluation.mean_return,
                "return/evaluation_worst": evaluation.min_return,
                "return/evaluation_best": evaluation.max_return,
            },
        )
        log.info("evaluated", version=evaluation.version, mean_return=evaluation.mean_return, steps=steps)
        training, play = self._progress.episode_return, self._config.evaluation_play
        if training is not None and differ_much(evaluation, training):
            found = {"mean_return": evaluation.mean_return, "training_return": training}
            log.warning("evaluation_differs", version=evaluation.version, play=play, **found)
        self._changed()

    def _rated(self, version: int) -> dict[str, float]:
        """The rating of a version from its matches, for its model and the curves."""
        rating = self._league.rating(version) if self._league is not None else None
        if rating is None:
            return {}
        self._recorder.record(self._progress.steps, {"selfplay/elo": rating.elo, "selfplay/elo_error": rating.error})
        return {"elo": rating.elo, "elo_error": rating.error, "match_games": float(rating.games)}

    async def _match(self, source: ExperienceSource, version: int, seed: int, seconds: float) -> None:
        """Plays against each reference; a match that fails is left out, like an evaluation."""
        assert self._league is not None
        # A user may have promoted another model in the meantime.
        promoted = await asyncio.to_thread(self._results.promoted, self._league.promoted)
        if promoted is not None:
            self._league.promote(*promoted)
        for opponent in self._league.references(version):
            try:
                found = await source.match(version, opponent, seed, seconds)
            except (FleetError, TimeoutError) as error:
                log.warning("match_failed", version=version, opponent=opponent, error=str(error))
                continue
            self._league.rate(version, opponent, found.won, found.drawn, found.lost)
            log.info("matched", version=version, opponent=opponent, won=found.won, drawn=found.drawn, lost=found.lost)
            await self._disk.write(self._league.save_matches)

    def give_up(self) -> None:
        """Cancels the evaluation, which is due again when the run continues."""
        if self._task is not None:
            self._task.cancel()
            self._progress.next_evaluation = self._progress.steps

    @property
    def seconds(self) -> float:
        """The time limit of an evaluation that starts now."""
        return self._config.evaluation_seconds or evaluation_seconds(
            episodes=self._config.evaluation_episodes,
            longest_episode=self._progress.longest_episode,
            step_seconds=self._throughput.step_seconds,
        )

    async def _evaluate(self, source: ExperienceSource, version: int, seed: int) -> Evaluation | None:
        seconds = self.seconds
        try:
            found = await source.evaluate(version, seed, seconds)
            if self._league is not None:
                await self._match(source, version, seed, seconds)
            if math.isfinite(found.mean_return):
                return found
            self._failed(version, f"its mean return is {found.mean_return}")
        except TimeoutError:
            self._failed(version, f"it took longer than {seconds:g} seconds (training.evaluation_seconds)")
        except Exception as error:
            # Environments and actors may raise anything.
            message = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
            self._failed(version, message, getattr(error, "metadata", {}).get("traceback", ""))
        finally:
            self._wake()
        return None

    def _failed(self, version: int, why: str, traceback: str = "") -> None:
        metrics.EVALUATIONS.labels("failed").inc()
        log.warning("evaluation_failed", version=version, error=why)
        self._progress.failed_evaluations += 1
        self._progress.note_failure(f"evaluation of version {version}: {why}", traceback)
        self._changed()


def differ_much(evaluation: Evaluation, training_return: float) -> bool:
    """Whether the newest training episodes, which are sampled, earn more than the best episode of an evaluation or more
    than twice its mean: a policy that is good only by chance, or play that is stuck."""
    gap = training_return - evaluation.mean_return
    return training_return > evaluation.max_return or gap > 0.5 * max(abs(training_return), abs(evaluation.mean_return))
