"""Finds settings that can never work together, before anything is collected or allocated."""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from parlmesh.errors import ConfigError
from parlmesh.policies import PolicySpec

from ..config import LearnerConfig
from ..experience import TrajectorySchema

# The names, types and shapes of a trajectory's columns, its origin and its episodes.
_ENVELOPE_BYTES = 4096
_FLOAT_BYTES = 4
# No limit grows beyond this unless it is set.
MOST_TRAJECTORY_BYTES = 256 * 1024 * 1024
# Settings that decide the shape of a checkpoint's content.
_SHAPING = (
    "algorithm",
    "environment",
    "network",
    "hidden",
    "activation",
    "normalise_observations",
    "dqn",
    "sac",
    "td3",
)


def check_feasible(config: LearnerConfig, policy: PolicySpec, schema: TrajectorySchema) -> None:
    """Raises a ConfigError that names the settings, their values and the possible ones."""
    _check_batch(config)
    _check_policy(config, policy)
    if config.mode == "fleet":
        _check_trajectory(config, schema)


def trajectory_bytes(schema: TrajectorySchema) -> int:
    """Size of an encoded trajectory."""
    return schema.size_bytes + _ENVELOPE_BYTES


def _check_batch(config: LearnerConfig) -> None:
    batch, room = config.training.batch_trajectories, config.experience.max_queued_trajectories
    if batch > room:
        message = (
            f"training.batch_trajectories is {batch}, but at most {room} trajectories may wait"
            f" (experience.max_queued_trajectories): no batch would ever be complete"
        )
        raise ConfigError(message, key="training.batch_trajectories")


def _check_policy(config: LearnerConfig, policy: PolicySpec) -> None:
    """Computes the size from the layers between inputs and outputs, which make up most of any network."""
    weights = sum(math.prod(pair) for pair in itertools.pairwise(policy.layer_sizes))
    size, most = weights * _FLOAT_BYTES, config.max_policy_bytes
    if size > most:
        message = (
            f"training.hidden {list(policy.hidden)} gives a policy of {size} bytes; the limit is {most}"
            " (max_policy_bytes, and limits.policy_bytes of the actors)"
        )
        raise ConfigError(message, key="training.hidden")


def _check_trajectory(config: LearnerConfig, schema: TrajectorySchema) -> None:
    size, most = trajectory_bytes(schema), config.experience.max_trajectory_bytes
    if schema.size_bytes > most:
        training = config.training
        message = (
            f"a trajectory of training.trajectory_steps {training.trajectory_steps} x num_envs {training.num_envs} has"
            f" {size} bytes; the limit is {most} (experience.max_trajectory_bytes,"
            " and limits.message_bytes of the actors)"
        )
        raise ConfigError(message, key="training.trajectory_steps")


def changed_settings(file: Path, training: Mapping[str, Any]) -> str:
    """Which of the settings that shape a checkpoint have changed since a run wrote them; empty when unknown."""
    try:
        before = yaml.safe_load(file.read_text(encoding="utf-8"))["training"]
        changed = [name for name in _SHAPING if before[name] != training[name]]
    except (OSError, KeyError, TypeError, UnicodeDecodeError, RecursionError, yaml.YAMLError):
        return ""
    return ", ".join(f"training.{name} was {before[name]}, is {training[name]}" for name in changed)
