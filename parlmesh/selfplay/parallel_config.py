"""The configuration of `ParallelManager`, and the interpretation of its dictionaries."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from parlmesh.config import Config
from parlmesh.environments import environment_spec
from parlmesh.errors import InvalidInput
from parlmesh.policies import PolicySpec

# Most games that one worker steps together.
_MOST_GAMES = 256


class ParallelConfig(Config):
    """The keys of `parallel_config`."""

    num_workers: int = Field(default=4, ge=1, le=256)
    """Worker processes."""
    games_per_worker: int = Field(default=10, ge=1, le=_MOST_GAMES)
    """Games stepped together by one worker."""
    max_game_length: int = Field(default=200, ge=1, le=10_000)
    """Most moves per game."""
    experience_batch_size: int = Field(default=64, ge=1, le=1_000_000)
    """Fewest steps per batch; a batch has the same number of steps from each of its worker's games."""
    model_sync_interval: int = Field(default=100, ge=1)
    """Collections of the training loop between calls of sync_model_to_workers."""
    worker_reset_interval: int = Field(default=1000, ge=1)
    """Collections of the training loop between calls of reset_workers."""
    timeout: float = Field(default=30.0, gt=0.0, le=3600.0)
    """Longest wait for a collection; a worker that takes longer for one batch counts as hanging and is replaced."""
    compression_enabled: bool = True
    """Ignored: weights reach workers on the same machine as a file. Accepted for compatibility of configurations."""
    serial: bool = False
    """Collect in this process, without workers; also the fallback when none can be started. A hanging game then hangs
    the caller."""
    seed: int = Field(default=0, ge=0, lt=1 << 31)
    """Seed of the initial weights and, together with task ids, of the games."""


def read_config(given: Mapping[str, Any] | None) -> ParallelConfig:
    """The validated configuration; InvalidInput names the first invalid key."""
    try:
        return ParallelConfig.model_validate(dict(given or {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = f"parallel_config {where}: {first['msg']}, got {first.get('input')!r}"
        raise InvalidInput(message, reason="CONFIGURATION") from error


def environment_of(given: dict[str, Any], config: ParallelConfig) -> dict[str, Any]:
    """A game given by `id` and `kwargs`, or shogi given as {board_size: 9, max_moves: …}."""
    if "id" in given:
        return {"id": given["id"], "kwargs": dict(given.get("kwargs") or {})}
    if given.get("board_size", 9) != 9:
        raise InvalidInput(f"env_config board_size must be 9, which is shogi, got {given['board_size']}", reason="GAME")
    plies = min(int(given.get("max_moves", config.max_game_length)), config.max_game_length)
    return {"id": "games/shogi", "kwargs": {"options": {"form": "flat", "max_plies": plies}}}


def spec_of(environment: Mapping[str, Any], given: dict[str, Any]) -> PolicySpec:
    """A perceptron for the game; given sizes must match the game's."""
    seen = environment_spec(environment)
    hidden = (int(given.get("hidden_dim", 512)),) * int(given.get("num_layers", 2))
    spec = PolicySpec.for_environment(seen, hidden=hidden)
    for name, size in (("input_dim", spec.observation_size), ("action_dim", spec.action.outputs)):
        if given.get(name, size) != size:
            raise InvalidInput(f"model_config {name} must be {size} for this game, got {given[name]}", reason="MODEL")
    return spec
