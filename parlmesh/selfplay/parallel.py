"""ParallelManager: self-play workers for a training loop of one's own, thin over a local fleet.

with ParallelManager(env_config, model_config, parallel_config) as manager:
    manager.start_workers()
    experiences = manager.collect_experiences(timeout=30.0)
"""

import hashlib
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from pydantic import Field, ValidationError

from parlmesh.client import ActorInfo, Outcome
from parlmesh.client.sync import Controller
from parlmesh.config import Config
from parlmesh.environments import environment_spec
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, InvalidInput
from parlmesh.files import replace_file
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.policies.dense import DenseActorCritic
from parlmesh.types import VALID, Array

from .collecting import KIND

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
    seed: int = Field(default=0, ge=0, lt=1 << 31)
    """Decides the first weights and, with the tasks, the games."""


@dataclass(frozen=True, slots=True)
class Experience:
    """A batch of one worker: columns [T, E, ...] of steps that one side of each game took with one version."""

    worker_id: str
    version: int
    columns: Mapping[str, Array]
    games: Mapping[str, Any]

    @property
    def steps(self) -> int:
        """Steps that were taken."""
        return int(np.count_nonzero(self.columns[VALID]))


class ParallelManager:
    """Workers from `start_workers` to `stop_workers`. `weights` are the model's; change them and sync."""

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        model_config: Mapping[str, Any] | None = None,
        parallel_config: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            self.config = ParallelConfig.model_validate(dict(parallel_config or {}))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            message = f"parallel_config {where}: {first['msg']}, got {first.get('input')!r}"
            raise InvalidInput(message, reason="CONFIGURATION") from error
        self._environment = _environment(dict(env_config or {}), self.config)
        self.spec = _spec(self._environment, dict(model_config or {}))
        self.weights = DenseActorCritic(self.spec, np.random.default_rng(self.config.seed)).named_weights()
        self.version = 0
        self._controller: Controller | None = None
        self._folder: Path | None = None
        self._digest = ""
        self._outstanding: deque[tuple[str, int]] = deque()
        self._counts = {"batches": 0, "steps": 0, "failed": 0}

    def start_workers(self) -> int:
        """Starts the workers and gives them the model; how many are ready."""
        if self._controller is not None:
            raise FailedPrecondition("the workers were started before; stop them first", reason="STARTED")
        self._folder = Path(tempfile.mkdtemp(prefix="parlmesh-selfplay-"))
        self.sync_model_to_workers()
        self._controller = Controller()
        actor = {"handlers": {KIND: "parlmesh.selfplay.collecting:CollectGames"}, "limits": {"prefetch": 0}}
        scheduler = {"listen": {"max_message_bytes": 1 << 28}}
        try:
            return self._controller.initialize(
                self.config.num_workers, actor=actor, scheduler=scheduler, processes=self.config.num_workers
            )
        except BaseException:
            self.stop_workers()
            raise

    def sync_model_to_workers(self, weights: Mapping[str, Array] | None = None) -> int:
        """Batches that are asked for from here on are of these weights, `self.weights` when none are given."""
        if self._folder is None:
            raise FailedPrecondition("the workers were not started", reason="NOT_STARTED")
        self.weights = dict(weights) if weights is not None else self.weights
        data = pack_policy(
            self.spec, {name: each for name, each in self.weights.items() if not name.startswith("value.")}
        )
        self.version += 1
        replace_file(self._file(self.version), data)
        self._digest = hashlib.sha256(data).hexdigest()
        # Tasks that are under way may still name the one before.
        self._file(self.version - 2 - self.config.num_workers).unlink(missing_ok=True)
        return self.version

    def collect_experiences(self, target: int = 1, timeout: float | None = None) -> list[Experience]:
        """Batches with `target` steps or more, or what came within the timeout. Never waits without a deadline."""
        controller = self._started()
        deadline = time.monotonic() + (self.config.timeout if timeout is None else timeout)
        found: list[Experience] = []
        while sum(each.steps for each in found) < target:
            while len(self._outstanding) < self.config.num_workers:
                self._outstanding.append((self._submit(controller), self.version))
            task_id, version = self._outstanding[0]
            try:
                outcome = controller.result(task_id, max(0.001, deadline - time.monotonic()))
            except DeadlineExceeded:
                break
            self._outstanding.popleft()
            self._take(outcome, version, found)
        return found

    def pause_workers(self, workers: Sequence[int] | None = None) -> None:
        """They finish what they have and take nothing."""
        self._started().pause(self._names(workers))

    def resume_workers(self, workers: Sequence[int] | None = None) -> None:
        """They take work again."""
        self._started().resume(self._names(workers))

    def reset_workers(self, workers: Sequence[int] | None = None) -> None:
        """They drop their games and start afresh."""
        self._started().reset(self._names(workers))

    def get_status(self) -> dict[str, Any]:
        """Workers, what is under way, and counts since the start."""
        actors = self._actors()
        states = {str(index): str(actor.state) for index, actor in enumerate(actors)}
        return {
            "active_workers": sum(state == "ready" for state in states.values()),
            "workers": states,
            "queue_info": {"outstanding": len(self._outstanding)},
            "version": self.version,
            **self._counts,
        }

    def stop_workers(self) -> None:
        """Ends every process; again is harmless."""
        controller, self._controller = self._controller, None
        folder, self._folder = self._folder, None
        self._outstanding.clear()
        try:
            if controller is not None:
                controller.close()
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop_workers()

    def _submit(self, controller: Controller) -> str:
        config = self.config
        parameters = {
            "environment": self._environment,
            "num_envs": config.games_per_worker,
            "steps": -(-config.experience_batch_size // config.games_per_worker),
            "seed": config.seed,
            "policy": str(self._file(self.version)),
            "digest": self._digest,
        }
        # A lost worker's batch is asked of another; one that hangs is killed by then.
        return controller.submit_task(KIND, parameters, run_timeout=config.timeout, max_attempts=3)

    def _take(self, outcome: Outcome, version: int, found: list[Experience]) -> None:
        if not outcome.ok:
            self._counts["failed"] += 1
            if isinstance(outcome.error, InvalidInput):
                raise outcome.error
            return
        value = outcome.value or {}
        found.append(Experience(outcome.actor_id, version, outcome.tensors, value.get("games", {})))
        self._counts["batches"] += 1
        self._counts["steps"] += found[-1].steps

    def _names(self, workers: Sequence[int] | None) -> list[str]:
        names = [actor.actor_id for actor in self._actors()]
        for index in workers or ():
            if not 0 <= index < len(names):
                raise InvalidInput(f"worker must lie in 0..{len(names) - 1}, got {index}", reason="WORKER")
        return names if workers is None else [names[index] for index in workers]

    def _actors(self) -> list[ActorInfo]:
        return sorted(self._started().list_actors(), key=lambda actor: (len(actor.actor_id), actor.actor_id))

    def _started(self) -> Controller:
        if self._controller is None:
            raise FailedPrecondition("the workers were not started", reason="NOT_STARTED")
        return self._controller

    def _file(self, version: int) -> Path:
        assert self._folder is not None
        return self._folder / f"policy-{version}.safetensors"


def _environment(given: dict[str, Any], config: ParallelConfig) -> dict[str, Any]:
    """A game by `id` and `kwargs`, or shogi as {board_size: 9, max_moves: …} says it."""
    if "id" in given:
        return {"id": given["id"], "kwargs": dict(given.get("kwargs") or {})}
    if given.get("board_size", 9) != 9:
        raise InvalidInput(f"env_config board_size must be 9, which is shogi, got {given['board_size']}", reason="GAME")
    plies = min(int(given.get("max_moves", config.max_game_length)), config.max_game_length)
    return {"id": "games/shogi", "kwargs": {"options": {"form": "flat", "max_plies": plies}}}


def _spec(environment: Mapping[str, Any], given: dict[str, Any]) -> PolicySpec:
    """A perceptron; sizes that are named must be those of the game."""
    seen = environment_spec(environment)
    hidden = (int(given.get("hidden_dim", 512)),) * int(given.get("num_layers", 2))
    spec = PolicySpec.for_environment(seen, hidden=hidden)
    for name, size in (("input_dim", spec.observation_size), ("action_dim", spec.action.outputs)):
        if given.get(name, size) != size:
            raise InvalidInput(f"model_config {name} must be {size} for this game, got {given[name]}", reason="MODEL")
    return spec
