"""Evaluates a policy on whole episodes."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from parlmesh.errors import InvalidInput
from parlmesh.rollouts import evaluate
from parlmesh.types import Array

from .policy import TrainedPolicy

# Of the normal distribution; Student's would be slightly wider for few episodes, by 15 % for ten.
_Z95 = 1.96


class Evaluation(NamedTuple):
    """Returns [episodes], their mean and its confidence interval."""

    returns: Array

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def half_width(self) -> float:
        """Half the width of the mean's 95 % interval; infinite for a single episode."""
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
    """Runs whole episodes, each in its own environment. Pass `environment` if the policy does not know its own."""
    return Evaluation(evaluate(policy.policy, known_environment(policy, environment), episodes, seed, sampled=sampled))


def known_environment(policy: TrainedPolicy, environment: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """The given environment, or the policy's own; raises InvalidInput if there is neither."""
    found = {"id": environment} if isinstance(environment, str) and environment else environment or policy.environment
    if not isinstance(found, Mapping) or not found:
        raise InvalidInput(
            "the file does not say which environment the policy was trained in; name the environment",
            reason="NO_ENVIRONMENT",
        )
    return found
