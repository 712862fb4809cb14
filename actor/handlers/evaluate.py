"""Judging one policy version: whole episodes of greedy play."""

from typing import Any

from pydantic import Field

from parlmesh.errors import Unavailable
from parlmesh.handlers import Context, Result, RunsIn
from parlmesh.rollouts import evaluate
from parlmesh.types import Array

from ..learner.link import LearnerLink
from .parameters import Parameters, SearchParameters, parse_parameters, search_of


class EvaluateParameters(Parameters):
    """What to evaluate."""

    run_id: str = Field(min_length=1, max_length=200)
    environment: dict[str, Any]
    episodes: int = Field(default=20, ge=1, le=10_000)
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    version: int = Field(ge=1, lt=1 << 53)
    sampled: bool = False
    search: SearchParameters | None = None
    run_uid: str = Field(default="", max_length=200)


class Evaluate:
    """The kind `evaluate`: the same version, seed and environment give the same returns on every actor."""

    kind = "evaluate"
    runs_in = RunsIn.THREAD

    def __init__(self, learner: LearnerLink) -> None:
        self._learner = learner

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Result:
        """{run_id, environment, episodes, seed, version, sampled, search, run_uid}"""
        wanted = parse_parameters(EvaluateParameters, self.kind, parameters)
        held = self._learner.exact_policy(wanted.run_id, wanted.version, context, wanted.run_uid)
        context.check()
        try:
            returns = evaluate(
                held.policy,
                wanted.environment,
                wanted.episodes,
                wanted.seed,
                sampled=wanted.sampled,
                search=search_of(wanted.search),
                cancelled=lambda: context.cancelled,
            )
        except Unavailable:
            # The player raises when it was cancelled; otherwise the error stands.
            context.check()
            raise
        return Result(
            {
                "version": held.version,
                "episodes": wanted.episodes,
                "mean_return": float(returns.mean()),
                "min_return": float(returns.min()),
                "max_return": float(returns.max()),
                "returns": [float(value) for value in returns],
            }
        )
