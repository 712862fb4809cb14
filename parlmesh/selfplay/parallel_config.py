"""The configuration of `ParallelManager`, and what its dictionaries mean here."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from parlmesh.config import Config
from parlmesh.environments import environment_spec
from parlmesh.errors import InvalidInput
from parlmesh.policies import PolicySpec

# Games of one worker that are stepped together, at most.
_MOST_GAMES = 256


class ParallelConfig(Config):
    """The keys of the configuration."""

    num_workers: int = Field(default=4, ge=1, le=256)
    """Worker processes."""
    games_per_worker: int = Field(default=10, ge=1, le=_MOST_GAMES)
    """Games that one worker steps together."""
    max_game_length: int = Field(default=200, ge=1, le=10_000)
    """Most moves of a game."""
    experience_batch_size: int = Field(default=64, ge=1, le=1_000_000)
    """Steps of one batch, at least; a batch has as many steps of every game of its worker."""
    model_sync_interval: int = Field(default=100, ge=1)
    """For the loop: collections between two calls of sync_model_to_workers."""
    worker_reset_interval: int = Field(default=1000, ge=1)
    """For the loop: collections between two calls of reset_workers."""
    timeout: float = Field(default=30.0, gt=0.0, le=3600.0)
    """Longest wait of a collection; a worker that takes longer for one batch hangs and is replaced."""
    compression_enabled: bool = True
    """Weights go to workers of the same machine as a file, which needs none; kept so that configurations are taken."""
    serial: bool = False
    """Collect in this process, without workers; it is also done where none can be started. A game that hangs then hangs
    its caller."""
    seed: int = Field(default=0, ge=0, lt=1 << 31)
    """Decides the first weights and, with the tasks, the games."""


def read_config(given: Mapping[str, Any] | None) -> ParallelConfig:
    """InvalidInput names the first key that cannot be."""
    try:
        return ParallelConfig.model_validate(dict(given or {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = f"parallel_config {where}: {first['msg']}, got {first.get('input')!r}"
        raise InvalidInput(message, reason="CONFIGURATION") from error


def environment_of(given: dict[str, Any], config: ParallelConfig) -> dict[str, Any]:
    """A game by `id` and `kwargs`, or shogi as {board_size: 9, max_moves: …} says it."""
    if "id" in given:
        return {"id": given["id"], "kwargs": dict(given.get("kwargs") or {})}
    if given.get("board_size", 9) != 9:
        raise InvalidInput(f"env_config board_size must be 9, which is shogi, got {given['board_size']}", reason="GAME")
    plies = min(int(given.get("max_moves", config.max_game_length)), config.max_game_length)
    return {"id": "games/shogi", "kwargs": {"options": {"form": "flat", "max_plies": plies}}}


def spec_of(environment: Mapping[str, Any], given: dict[str, Any]) -> PolicySpec:
    """A perceptron; sizes that are named must be those of the game."""
    seen = environment_spec(environment)
    hidden = (int(given.get("hidden_dim", 512)),) * int(given.get("num_layers", 2))
    spec = PolicySpec.for_environment(seen, hidden=hidden)
    for name, size in (("input_dim", spec.observation_size), ("action_dim", spec.action.outputs)):
        if given.get(name, size) != size:
            raise InvalidInput(f"model_config {name} must be {size} for this game, got {given[name]}", reason="MODEL")
    return spec
