"""ParallelManager: self-play workers for your own training loop, a thin layer over a local fleet.

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

from parlmesh.client import ActorInfo, Outcome
from parlmesh.client.sync import Controller
from parlmesh.durable_files import replace_file
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, FleetError, InvalidInput
from parlmesh.policies import pack_policy
from parlmesh.policies.numpy_networks import DenseActorCritic
from parlmesh.telemetry import get_logger
from parlmesh.types import VALID, Array

from .collect_handler import KIND
from .parallel_config import environment_of, read_config, spec_of
from .serial_worker import SerialWorker

log = get_logger("parlmesh.selfplay")


@dataclass(frozen=True, slots=True)
class Experience:
    """One worker's batch: columns [T, E, ...] of one side's steps in each game, with one version."""

    worker_id: str
    version: int
    columns: Mapping[str, Array]
    games: Mapping[str, Any]

    @property
    def steps(self) -> int:
        """Number of valid steps."""
        return int(np.count_nonzero(self.columns[VALID]))


class ParallelManager:
    """Manages workers from `start_workers` to `stop_workers`. `weights` is the model; change it, then sync."""

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        model_config: Mapping[str, Any] | None = None,
        parallel_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = read_config(parallel_config)
        self.environment = environment_of(dict(env_config or {}), self.config)
        self.spec = spec_of(self.environment, dict(model_config or {}))
        self.weights = DenseActorCritic(self.spec, np.random.default_rng(self.config.seed)).named_weights()
        self.version = 0
        self._controller: Controller | None = None
        self._serial: SerialWorker | None = None
        self._folder: Path | None = None
        self._digest = ""
        self._outstanding: deque[tuple[str, int]] = deque()
        self._counts = {"batches": 0, "steps": 0, "failed": 0}

    def start_workers(self) -> int:
        """Starts the workers, sends them the model and returns how many are ready. If none can be started, this process
        does their work; the log and `get_status` show that."""
        if self._folder is not None:
            raise FailedPrecondition("the workers are already started; stop them first", reason="STARTED")
        self._folder = Path(tempfile.mkdtemp(prefix="parlmesh-selfplay-"))
        self.sync_model_to_workers()
        if not self.config.serial:
            try:
                return self._start_fleet()
            except (FleetError, OSError) as error:
                log.warning("workers_not_started", error=str(error), advice="this process collects serially instead")
                self._end_fleet()
            except BaseException:
                self.stop_workers()
                raise
        self._serial = SerialWorker()
        return 1

    def _start_fleet(self) -> int:
        self._controller = Controller()
        actor = {"handlers": {KIND: "parlmesh.selfplay.collect_handler:CollectGames"}, "limits": {"prefetch": 0}}
        scheduler = {"listen": {"max_message_bytes": 1 << 28}}
        count = self.config.num_workers
        return self._controller.initialize(count, actor=actor, scheduler=scheduler, processes=count)

    def sync_model_to_workers(self, weights: Mapping[str, Array] | None = None) -> int:
        """Publishes these weights, or `self.weights`, for all batches requested from now on; returns the version."""
        if self._folder is None:
            raise FailedPrecondition("the workers were not started", reason="NOT_STARTED")
        self.weights = dict(weights) if weights is not None else self.weights
        data = pack_policy(
            self.spec, {name: each for name, each in self.weights.items() if not name.startswith("value.")}
        )
        self.version += 1
        replace_file(self._file(self.version), data)
        self._digest = hashlib.sha256(data).hexdigest()
        # Running tasks may still need recent older versions.
        self._file(self.version - 2 - self.config.num_workers).unlink(missing_ok=True)
        return self.version

    def collect_experiences(self, target: int = 1, timeout: float | None = None) -> list[Experience]:
        """Batches with at least `target` steps, or those that arrived within the timeout. Always has a deadline; raises
        Unavailable once no worker is left that can be restarted."""
        deadline = time.monotonic() + (self.config.timeout if timeout is None else timeout)
        found: list[Experience] = []
        if self._serial is not None:
            while (
                not self._serial.paused and sum(each.steps for each in found) < target and time.monotonic() < deadline
            ):
                self._add(found, "serial", self.version, *self._serial.collect(self._parameters()))
            return found
        controller = self._started()
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
        """Workers finish their current task and take no new ones."""
        if self._serial is not None:
            self._serial.paused = True
            return
        self._started().pause(self._names(workers))

    def resume_workers(self, workers: Sequence[int] | None = None) -> None:
        """Workers take tasks again."""
        if self._serial is not None:
            self._serial.paused = False
            return
        self._started().resume(self._names(workers))

    def reset_workers(self, workers: Sequence[int] | None = None) -> None:
        """Workers drop their games and start new ones."""
        if self._serial is not None:
            self._serial.reset()
            return
        self._started().reset(self._names(workers))

    def get_status(self) -> dict[str, Any]:
        """Worker states, outstanding tasks, and counts since the start."""
        if self._serial is not None:
            states = {"0": "paused" if self._serial.paused else "ready"}
        else:
            states = {str(index): str(actor.state) for index, actor in enumerate(self._actors())}
        return {
            "active_workers": sum(state == "ready" for state in states.values()),
            "workers": states,
            "queue_info": {"outstanding": len(self._outstanding)},
            "version": self.version,
            "serial": self._serial is not None,
            # Why a worker is no longer restarted; the others continue.
            "trouble": self._controller.trouble if self._controller is not None else "",
            **self._counts,
        }

    def stop_workers(self) -> None:
        """Ends all processes; repeated calls are harmless."""
        folder, self._folder = self._folder, None
        self._serial = None
        try:
            self._end_fleet()
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _end_fleet(self) -> None:
        controller, self._controller = self._controller, None
        self._outstanding.clear()
        if controller is not None:
            controller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop_workers()

    def _parameters(self) -> dict[str, Any]:
        config = self.config
        return {
            "environment": self.environment,
            "num_envs": config.games_per_worker,
            "steps": -(-config.experience_batch_size // config.games_per_worker),
            "seed": config.seed,
            "policy": str(self._file(self.version)),
            "digest": self._digest,
        }

    def _submit(self, controller: Controller) -> str:
        # Another worker retries a lost worker's batch; a hanging worker is killed at the timeout.
        return controller.submit_task(KIND, self._parameters(), run_timeout=self.config.timeout, max_attempts=3)

    def _take(self, outcome: Outcome, version: int, found: list[Experience]) -> None:
        if not outcome.ok:
            self._counts["failed"] += 1
            if isinstance(outcome.error, InvalidInput):
                raise outcome.error
            return
        self._add(found, outcome.actor_id, version, outcome.value or {}, outcome.tensors)

    def _add(
        self, found: list[Experience], worker: str, version: int, value: Mapping[str, Any], columns: Mapping[str, Array]
    ) -> None:
        found.append(Experience(worker, version, columns, value.get("games", {})))
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
