"""Whole episodes of a policy: what they return, and how they look."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.rollouts import evaluate
from parlmesh.types import Array

from .policy import TrainedPolicy

# Of the normal distribution; for few episodes Student's would be a little wider, by a tenth at ten of them.
_Z95 = 1.96
_MOST_FRAMES = 2_000


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
    return Evaluation(evaluate(policy.policy, _known(policy, environment), episodes, seed, sampled=sampled))


def film(policy: TrainedPolicy, file: Path, environment: Mapping[str, Any] | str = "", *, seed: int = 0) -> int:
    """One episode as an animated GIF, at most 2,000 frames; how many there are."""
    import gymnasium
    from PIL import Image

    if file.suffix != ".gif":
        raise InvalidInput(f"{file} must end in .gif", reason="INVALID_FILE")
    described = _known(policy, environment)
    name, arguments = str(described.get("id")), {**(described.get("kwargs") or {}), "render_mode": "rgb_array"}
    try:
        world: Any = gymnasium.make(name.rpartition(":")[2], **arguments)
    except (gymnasium.error.Error, TypeError) as error:
        raise InvalidInput(f"{name} cannot be drawn: {error}", reason="ENVIRONMENT") from error
    policy.reset()
    try:
        observation, _ = world.reset(seed=seed)
        frames = [world.render()]
        over = False
        while not over and len(frames) < _MOST_FRAMES:
            observation, _, terminated, truncated, _ = world.step(policy.act(observation))
            over = terminated or truncated
            frames.append(world.render())
        rate = float(world.metadata.get("render_fps") or 30)
    finally:
        world.close()
    if not isinstance(frames[0], np.ndarray):
        raise InvalidInput(f"{name} draws no pictures", reason="ENVIRONMENT")
    images = [Image.fromarray(np.asarray(frame)).quantize(64) for frame in frames]
    images[0].save(file, save_all=True, append_images=images[1:], duration=max(20, round(1000 / rate)), loop=0)
    return len(images)


def _known(policy: TrainedPolicy, environment: Mapping[str, Any] | str) -> Mapping[str, Any]:
    found = {"id": environment} if isinstance(environment, str) and environment else environment or policy.environment
    if not isinstance(found, Mapping) or not found:
        raise InvalidInput(
            "the file does not say what the policy was trained in; name the environment", reason="NO_ENVIRONMENT"
        )
    return found
