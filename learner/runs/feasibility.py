"""Settings that can never work together, each told in one sentence before anything is collected or allocated."""

import itertools
import math

from parlmesh.errors import ConfigError
from parlmesh.policies import PolicySpec

from ..config import LearnerConfig
from ..experience import TrajectorySchema

# The names, types and shapes of a trajectory's columns, its origin and its episodes.
_ENVELOPE_BYTES = 4096
_FLOAT_BYTES = 4


def check_feasible(config: LearnerConfig, policy: PolicySpec, schema: TrajectorySchema) -> None:
    """ConfigError names the settings, their values and what is possible."""
    _check_batch(config)
    _check_policy(config, policy)
    if config.mode == "fleet":
        _check_trajectory(config, schema)


def _check_batch(config: LearnerConfig) -> None:
    batch, room = config.training.batch_fragments, config.experience.max_queued_trajectories
    if batch > room:
        message = (
            f"training.batch_fragments is {batch}, and at most {room} trajectories may wait"
            f" (experience.max_queued_trajectories): no batch would ever be complete"
        )
        raise ConfigError(message, key="training.batch_fragments")


def _check_policy(config: LearnerConfig, policy: PolicySpec) -> None:
    """By the layers between inputs and outputs, which are most of any network."""
    weights = sum(math.prod(pair) for pair in itertools.pairwise(policy.layer_sizes))
    size, most = weights * _FLOAT_BYTES, config.max_policy_bytes
    if size > most:
        message = (
            f"training.hidden {list(policy.hidden)} gives a policy of {size} bytes; the limit is {most}"
            " (max_policy_bytes, and limits.policy_bytes of the actors)"
        )
        raise ConfigError(message, key="training.hidden")


def _check_trajectory(config: LearnerConfig, schema: TrajectorySchema) -> None:
    size, most = schema.size_bytes + _ENVELOPE_BYTES, config.experience.max_trajectory_bytes
    if schema.size_bytes > most:
        training = config.training
        message = (
            f"a trajectory of training.fragment_steps {training.fragment_steps} x num_envs {training.num_envs} has"
            f" {size} bytes; the limit is {most} (experience.max_trajectory_bytes,"
            " and limits.message_bytes of the actors)"
        )
        raise ConfigError(message, key="training.fragment_steps")
