"""Whole episodes of a policy: what they return, and how they look."""

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parlmesh.environments import single_environment
from parlmesh.errors import FailedPrecondition, InvalidInput
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
    return Evaluation(evaluate(policy.policy, known_environment(policy, environment), episodes, seed, sampled=sampled))


def film(policy: TrainedPolicy, file: Path, environment: Mapping[str, Any] | str = "", *, seed: int = 0) -> int:
    """One episode as an animated GIF, or as MP4 where there is an encoder, at most 2,000 frames; how many they are."""
    if file.suffix not in (".gif", ".mp4"):
        raise InvalidInput(f"{file} must end in .gif or .mp4", reason="INVALID_FILE")
    if file.suffix == ".mp4" and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise FailedPrecondition(
            f"{file} needs an encoder: pip install imageio-ffmpeg, or write a .gif", reason="NOT_INSTALLED"
        )
    described = known_environment(policy, environment)
    name = str(described.get("id"))
    world: Any = single_environment(described, render_mode="rgb_array")
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
    write = _write_gif if file.suffix == ".gif" else _write_mp4
    write(file, [np.asarray(frame, np.uint8) for frame in frames], rate)
    return len(frames)


def _write_gif(file: Path, frames: list[Array], rate: float) -> None:
    from PIL import Image

    images = [Image.fromarray(frame).quantize(64) for frame in frames]
    images[0].save(file, save_all=True, append_images=images[1:], duration=max(20, round(1000 / rate)), loop=0)


def _write_mp4(file: Path, frames: list[Array], rate: float) -> None:
    import imageio_ffmpeg

    height, width = frames[0].shape[:2]
    # Colours are kept for two by two points: an odd last row or column is left out.
    size = (width - width % 2, height - height % 2)
    writer = imageio_ffmpeg.write_frames(str(file), size, fps=rate, macro_block_size=2)
    writer.send(None)
    try:
        for frame in frames:
            writer.send(np.ascontiguousarray(frame[: size[1], : size[0], :3]))
    finally:
        writer.close()


def known_environment(policy: TrainedPolicy, environment: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """What to play in: the one named, or the policy's own; InvalidInput when there is none."""
    found = {"id": environment} if isinstance(environment, str) and environment else environment or policy.environment
    if not isinstance(found, Mapping) or not found:
        raise InvalidInput(
            "the file does not say what the policy was trained in; name the environment", reason="NO_ENVIRONMENT"
        )
    return found
