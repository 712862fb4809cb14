"""Whole episodes of a policy, and what they return."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from parlmesh.errors import InvalidInput
from parlmesh.rollouts import evaluate
from parlmesh.types import Array

from .policy import TrainedPolicy

# Of the normal distribution; for few episodes Student's would be a little wider, by a tenth at ten of them.
_Z95 = 1.96


class Evaluation(NamedTuple):
    """Returns [episodes], and what they tell of the mean."""

    returns: Array

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def half_width(self) -> float:
        """The mean is within this of the true one, 19 times of 20; infinite for a single episode."""
        count = len(self.returns)
        return _Z95 * float(self.returns.std(ddof=1)) / math.sqrt(count) if count > 1 else math.inf


def evaluate_policy(
    policy: TrainedPolicy,
    environment: Mapping[str, Any] | str = "",
    *,
    episodes: int = 20,
    seed: int = 0,
    sampled: bool = False,
) -> Evaluation:
    """Plays whole episodes, each in an environment of its own; `environment` where the policy does not know its own."""
    return Evaluation(evaluate(policy.policy, known_environment(policy, environment), episodes, seed, sampled=sampled))


def known_environment(policy: TrainedPolicy, environment: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """What to play in: the one named, or the policy's own; InvalidInput when there is none."""
    found = {"id": environment} if isinstance(environment, str) and environment else environment or policy.environment
    if not isinstance(found, Mapping) or not found:
        raise InvalidInput(
            "the file does not say what the policy was trained in; name the environment", reason="NO_ENVIRONMENT"
        )
    return found
