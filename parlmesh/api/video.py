"""Renders one episode of a policy as a GIF, or as an MP4 if an encoder is installed."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parlmesh.environments import single_environment
from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.types import Array

from .episodes import known_environment
from .policy import TrainedPolicy

_MOST_FRAMES = 2_000


def check_video(file: Path) -> None:
    """Raises what is wrong with the file's name, or missing to write it, before anything is played."""
    if file.suffix not in (".gif", ".mp4"):
        raise InvalidInput(f"{file} must end in .gif or .mp4", reason="INVALID_FILE")
    if file.suffix == ".mp4" and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise FailedPrecondition(
            f"{file} needs an encoder: pip install imageio-ffmpeg, or write a .gif", reason="NOT_INSTALLED"
        )
    if not file.parent.is_dir():
        raise InvalidInput(f"there is no folder {file.parent} for {file.name}", reason="INVALID_FILE")


def film(policy: TrainedPolicy, file: Path, environment: Mapping[str, Any] | str = "", *, seed: int = 0) -> int:
    """Writes one episode as .gif or .mp4, at most 2,000 frames; returns the number of frames."""
    check_video(file)
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
        raise InvalidInput(f"{name} cannot render pictures", reason="ENVIRONMENT")
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
    # Colours are stored per 2 x 2 pixels, so an odd last row or column is dropped.
    size = (width - width % 2, height - height % 2)
    writer = imageio_ffmpeg.write_frames(str(file), size, fps=rate, macro_block_size=2)
    writer.send(None)
    try:
        for frame in frames:
            writer.send(np.ascontiguousarray(frame[: size[1], : size[0], :3]))
    finally:
        writer.close()
