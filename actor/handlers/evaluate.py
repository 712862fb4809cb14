"""Evaluates one policy version: whole episodes of greedy play."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import Field

from parlmesh.errors import Unavailable
from parlmesh.handlers import Context, Result, RunsIn
from parlmesh.rollouts import evaluate
from parlmesh.types import Array

from ..learner.policy_client import PolicyLink
from .parameters import Parameters, SearchParameters, search_of


class PlayParameters(Parameters):
    """Which version of which run plays, and where."""

    run_id: str = Field(min_length=1, max_length=200)
    run_uid: str = Field(default="", max_length=200)
    version: int = Field(ge=1, lt=1 << 53)
    environment: dict[str, Any]
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    search: SearchParameters | None = None


class EvaluateParameters(PlayParameters):
    """The parameters of an evaluation."""

    episodes: int = Field(default=20, ge=1, le=10_000)
    sampled: bool = False


@contextmanager
def cancellable(context: Context) -> Iterator[None]:
    """Wraps the play of whole episodes: Unavailable means Cancelled if the task was cancelled; otherwise it is raised
    unchanged."""
    context.check()
    try:
        yield
    except Unavailable:
        context.check()
        raise


class Evaluate:
    """The kind `evaluate`: the same version, seed and environment give the same returns on every actor."""

    kind = "evaluate"
    runs_in = RunsIn.THREAD

    def __init__(self, policies: PolicyLink) -> None:
        self._policies = policies

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Result:
        """{run_id, environment, episodes, seed, version, sampled, search, run_uid}"""
        wanted = EvaluateParameters.of(self.kind, parameters)
        held = self._policies.exact_policy(wanted.run_id, wanted.version, context, wanted.run_uid)
        with cancellable(context):
            returns = evaluate(
                held.policy,
                wanted.environment,
                wanted.episodes,
                wanted.seed,
                sampled=wanted.sampled,
                search=search_of(wanted.search),
                cancelled=lambda: context.cancelled,
            )
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
