"""Evaluates a policy on whole episodes."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from parlmesh.environments import environment_spec
from parlmesh.errors import InvalidInput
from parlmesh.policies import PolicySpec
from parlmesh.rollouts import evaluate
from parlmesh.types import ActionSpec, Array, EnvironmentSpec

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
    if not isinstance(policy, TrainedPolicy):
        raise InvalidInput(f"policy is {policy!r:.60}; load it with parlmesh.load_policy", reason="INVALID_POLICY")
    if episodes < 1:
        raise InvalidInput(f"episodes is {episodes}; it must be 1 or more", reason="INVALID_EPISODES")
    found = known_environment(policy, environment)
    check_fits(policy, found)
    return Evaluation(evaluate(policy.policy, found, episodes, seed, sampled=sampled))


def check_fits(policy: TrainedPolicy, environment: Mapping[str, Any]) -> None:
    """Raises InvalidInput for an environment whose observations or actions are not those of the policy."""
    spec, here, name = policy.spec, environment_spec(environment), environment.get("id")
    # Sizes, because earlier versions trained on grey images [H, W] that now have an axis of channels.
    sizes = [each.observation_states or math.prod(each.observation_shape) for each in (here, spec)]
    if bool(here.observation_states) != bool(spec.observation_states) or sizes[0] != sizes[1]:
        found, wanted = (_observed(each) for each in (here, spec))
        raise InvalidInput(
            f"environment {name!r} has observations of {found}; the policy was trained on {wanted}",
            reason="ENVIRONMENT_SPACE",
        )
    found, wanted = (_acted(each.action) for each in (here, spec))
    if found != wanted:
        raise InvalidInput(
            f"environment {name!r} has {found} actions; the policy was trained on {wanted}", reason="ENVIRONMENT_SPACE"
        )


def _observed(spec: EnvironmentSpec | PolicySpec) -> str:
    states = spec.observation_states
    return f"one of {states} states" if states else f"the shape {list(spec.observation_shape)}"


def _acted(action: ActionSpec) -> str:
    return f"{len(action.low)} continuous" if action.kind == "continuous" else f"{list(action.sizes)} discrete"


def known_environment(policy: TrainedPolicy, environment: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """The given environment, or the policy's own; raises InvalidInput if there is neither."""
    found = {"id": environment} if isinstance(environment, str) and environment else environment or policy.environment
    if not isinstance(found, Mapping) or not found:
        raise InvalidInput(
            "the file does not name the environment the policy was trained in; name it: environment=, or --environment",
            reason="NO_ENVIRONMENT",
        )
    return found
