"""The consequences of an evaluation: a kept model, the best policy so far, and whether the goal was reached."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parlmesh.types import PolicyBlob

from ..files.kept_models import ModelFolder
from ..files.recorder import Recorder
from ..sources.experience_source import Evaluation
from .progress import Progress


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy that is being evaluated, kept even if the registry forgets it in the meantime."""

    blob: PolicyBlob
    steps: int


class EvaluationResults:
    """Decides on the event loop; writes files in the training thread, and again if the disk refused."""

    def __init__(
        self, progress: Progress, goal: float | None, models: ModelFolder, recorder: Recorder, about: Mapping[str, Any]
    ) -> None:
        self._progress = progress
        self._goal = goal
        self._models = models
        self._recorder = recorder
        self._about = about
        self._kept_version = 0

    def decide(self, evaluation: Evaluation) -> bool:
        """Takes in an evaluation's result; True when it is the best so far."""
        progress = self._progress
        progress.evaluations += 1
        progress.evaluation_return = evaluation.mean_return
        reached = self._goal is not None and evaluation.mean_return >= self._goal
        progress.goals_in_a_row = progress.goals_in_a_row + 1 if reached else 0
        best = progress.best_evaluation_return
        if best is not None and evaluation.mean_return <= best:
            return False
        progress.best_evaluation_return = evaluation.mean_return
        progress.best_version = evaluation.version
        return True

    def keep(
        self, candidate: Candidate, evaluation: Evaluation, best: bool, more: Mapping[str, float] | None = None
    ) -> None:
        """Writes an evaluated policy with its results."""
        if best:
            self._recorder.save_policy(candidate.blob.data)
        found = {"evaluation_return": evaluation.mean_return, "evaluation_episodes": evaluation.episodes}
        self._keep(candidate, {**found, **(more or {})})

    def promoted(self, known: int) -> tuple[int, bytes] | None:
        """The promoted version and its bytes, unless it is the `known` one."""
        version = self._models.promoted
        if version in (0, known):
            return None
        return version, self._models.blob(self._models.get(version))

    def promote(self, version: int) -> None:
        """Makes an evaluated policy the one that users get."""
        self._models.promote(version)

    def keep_last(self, candidate: Candidate) -> None:
        """Keeps the policy that the run ended with, evaluated or not."""
        if candidate.blob.version != self._kept_version:
            self._keep(candidate, {})

    def _keep(self, candidate: Candidate, found: Mapping[str, Any]) -> None:
        blob = candidate.blob
        self._models.add(blob.version, blob.data, {**self._about, "steps": candidate.steps, **found})
        self._kept_version = blob.version
