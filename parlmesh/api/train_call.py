"""`parlmesh.train`: starts a run from Python and returns a handle to watch it, control it and get its result.

run = parlmesh.train("CartPole-v1", steps=100_000)
action = run.policy.act(observation)
"""

import itertools
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from parlmesh.client.config import seconds_in
from parlmesh.config import load
from parlmesh.errors import AlreadyExists, DeadlineExceeded, FailedPrecondition, InvalidInput
from parlmesh.function_tasks import stop_import
from parlmesh.local.presets import settings_file
from parlmesh.local.process_configs import RunPaths, UpConfig, environment_id, fresh_run_id
from parlmesh.processes import merged
from parlmesh.security import SecurityConfig
from parlmesh.types import Array

from .policy import TrainedPolicy
from .progress_bar import progress_bar
from .run_follower import Follower, Progress

Callback = Callable[["TrainingRun"], None]

_FREE_PORTS = {"scheduler": 0, "learner": 0, "metrics": 0}


class TrainingRun:
    """A run that continues in the background until it ends or is stopped. May be used from any thread."""

    def __init__(self, run_id: str, folder: Path | None, follower: Follower, callbacks: Mapping[str, Callback]) -> None:
        self.run_id = run_id
        self.folder = folder
        """Folder of the run's files; None on a remote learner."""
        self._follower = follower
        self._callbacks = callbacks
        self._calling = 0
        self._progress = Progress()
        self._show: Callable[[Progress], None] = lambda progress: None
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"parlmesh run {run_id}", daemon=True)

    def __repr__(self) -> str:
        told = self._progress
        return f"<run {self.run_id}: {told.state}, {told.steps:,} of {told.step_budget:,} steps>"

    @property
    def progress(self) -> Progress:
        """The last reported progress."""
        return self._progress

    @property
    def curves(self) -> dict[str, tuple[Array, Array]]:
        """Steps and values of every curve, e.g. `return/evaluation`; up to date while the run continues."""
        return self._follower.curves()

    @property
    def policy(self) -> TrainedPolicy:
        """The best evaluated policy so far, or the newest if none was evaluated."""
        blob = self._follower.best_policy()
        return TrainedPolicy(blob, self._progress.environment)

    def pause(self) -> None:
        """Pauses training until `resume`."""
        self._follower.command("Pause")

    def resume(self) -> None:
        """Continues after a pause."""
        self._follower.command("Resume")

    def stop(self) -> None:
        """Ends the run and keeps its policy; waits for the end, except inside a callback."""
        self._follower.stop()
        if threading.get_ident() != self._calling:
            self._ended.wait()

    def wait(self, timeout: float | None = None) -> "TrainingRun":
        """Waits for the end of the run. Raises its error if it failed, and DeadlineExceeded after the timeout."""
        if timeout is None and threading.get_ident() == self._calling:
            raise FailedPrecondition(
                f"a callback of run {self.run_id} waits for its end, which waits for the callback; use run.stop()",
                reason="OWN_CALLBACK",
            )
        if timeout is not None:
            timeout = seconds_in(timeout)
        if not self._ended.wait(timeout):
            raise DeadlineExceeded(f"run {self.run_id} has not ended after {timeout:g} s; it continues")
        if self._error is not None:
            raise self._error
        return self

    def watch(self, show: Callable[[Progress], None]) -> None:
        """Calls `show` with all progress from now on."""
        self._show = show

    def start(self) -> None:
        """Starts the run; call it once."""
        self._thread.start()

    def _run(self) -> None:
        try:
            self._follower.run(self._told)
            if self._progress.state == "failed":
                error = FailedPrecondition(f"run {self.run_id} failed: {self._progress.reason}", reason="RUN_FAILED")
                if self._progress.traceback:
                    error.add_note(self._progress.traceback)
                self._error = error
        except BaseException as error:
            self._error = error
        finally:
            if self._error is not None:
                self._progress = replace(self._progress, state="failed", reason=str(self._error))
            self._call("on_end")
            self._ended.set()

    def _told(self, progress: Progress) -> None:
        before, self._progress = self._progress, progress
        self._show(progress)
        self._call("on_progress")
        if progress.evaluations > before.evaluations:
            self._call("on_evaluation")
        if progress.checkpoint_version > before.checkpoint_version:
            self._call("on_checkpoint")

    def _call(self, name: str) -> None:
        callback = self._callbacks.get(name)
        if callback is None:
            return
        self._calling = threading.get_ident()
        try:
            callback(self)
        except BaseException as error:
            # The caller's own exception ends the run; `wait` raises it.
            self._error = error
            self._follower.stop()
        finally:
            self._calling = 0


def train(
    environment: str | Mapping[str, Any] = "",
    *,
    algorithm: str = "",
    steps: int | None = None,
    goal: float | None = None,
    actors: int | None = None,
    serial: bool = False,
    seed: int | None = None,
    preset: str | Path = "",
    settings: Mapping[str, Any] | None = None,
    plugins: Sequence[str] = (),
    learner: str = "",
    security: SecurityConfig | None = None,
    run_id: str = "",
    runs_dir: str | Path = "runs",
    wait: bool = True,
    progress: bool | None = None,
    on_progress: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_checkpoint: Callback | None = None,
    on_end: Callback | None = None,
) -> TrainingRun:
    """Trains a policy with a fleet on this machine, in one process (`serial`), or on a running learner (`learner`).

    `settings` are keys of the configuration's `training` section, e.g. {"ppo": {"learning_rate": 1e-3}}; `preset` is
    the name of a built-in preset, or a file; `actors` is 2 unless it says otherwise. Waits for the end, with a progress
    bar in a terminal or a notebook; `wait=False` returns the handle at once. Callbacks get the run as argument; if one
    raises, the run ends.
    """
    stop_import()
    if learner and (actors is not None or serial):
        name, value = ("actors", actors) if actors is not None else ("serial", serial)
        raise InvalidInput(
            f"{name} is {value}, but the learner at {learner} has its own fleet; leave {name} out",
            reason="INVALID_CHOICE",
        )
    fleet = _fleet(actors, serial=serial, run_id=run_id)
    config = _config(environment, algorithm, steps, goal, seed, preset, settings, fleet)
    config = config.model_copy(update={"plugins": (*config.plugins, *_resolved(plugins))})
    if security is not None:
        config = config.model_copy(update={"security": security})
    given = {
        "on_progress": on_progress,
        "on_evaluation": on_evaluation,
        "on_checkpoint": on_checkpoint,
        "on_end": on_end,
    }
    callbacks = {name: each for name, each in given.items() if each is not None}
    _check_callbacks(callbacks)
    name = run_id or fresh_run_id(environment_id(config), datetime.now().astimezone())
    if learner:
        # Other programs may name their runs in the same second.
        name = run_id or f"{name}-{secrets.token_hex(3)}"
        run = TrainingRun(name, None, Follower.remote(config, learner, name), callbacks)
    else:
        paths = _folder(Path(runs_dir) / name) if run_id else _fresh_folder(Path(runs_dir) / name)
        name = paths.root.name
        run = TrainingRun(
            name, paths.root, Follower.local(config.model_copy(update={"run_id": name}), paths), callbacks
        )
    run.start()
    if wait:
        try:
            with progress_bar(run, shown=progress):
                run.wait()
        except KeyboardInterrupt:
            run.stop()
            raise
    return run


def _config(
    environment: str | Mapping[str, Any],
    algorithm: str,
    steps: int | None,
    goal: float | None,
    seed: int | None,
    preset: str | Path,
    settings: Mapping[str, Any] | None,
    fleet: Sequence[str],
) -> UpConfig:
    _check(environment, settings)
    file = settings_file(Path(preset)) if preset else None
    config = load(UpConfig, file=file, overrides=fleet, environment=os.environ, prefix="PARLMESH_UP")
    wanted = {"algorithm": algorithm or None, "step_budget": steps, "goal_return": goal, "seed": seed}
    training: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if environment:
        training["environment"] = {"id": environment} if isinstance(environment, str) else dict(environment)
        if goal is None and not preset:
            training["goal_return"] = None  # only the budget ends the run
    merged_training = merged(merged(config.training, training), settings or {})
    ports = config.ports.model_copy(update=_FREE_PORTS)
    return config.model_copy(update={"training": merged_training, "ports": ports})


def _fleet(actors: int | None, *, serial: bool, run_id: str) -> list[str]:
    """The arguments that override the preset, so that they are checked as its own values are."""
    given = {"actors": actors, "serial": "true" if serial else None, "run_id": run_id or None}
    return [f"{name}={value}" for name, value in given.items() if value is not None]


def _check(environment: object, settings: object) -> None:
    """Names the mistakes of users of other libraries, who pass an environment itself."""
    if not isinstance(environment, (str, Mapping)):
        raise InvalidInput(
            f"environment is a {type(environment).__name__}; it must be an id such as 'CartPole-v1', or a mapping with "
            "one: every process makes its own (for a class, see plugins)",
            reason="INVALID_ENVIRONMENT",
        )
    if settings is not None and not isinstance(settings, Mapping):
        raise InvalidInput(
            f"settings is {settings!r:.60}; it must be a mapping of keys of the section training",
            reason="INVALID_SETTINGS",
        )


def _check_callbacks(callbacks: Mapping[str, object]) -> None:
    for name, given in callbacks.items():
        if not callable(given):
            raise InvalidInput(
                f"{name} is {given!r:.60}; it must be a function that takes the run", reason="INVALID_CALLBACK"
            )


def _resolved(plugins: Sequence[str]) -> list[str]:
    if isinstance(plugins, str):
        raise InvalidInput(f"plugins is the text {plugins!r}; it must be a list", reason="INVALID_PLUGINS")
    return [str(Path(each).resolve()) if ".py:" in each else each for each in plugins]


def _fresh_folder(root: Path) -> RunPaths:
    """The folder, or if another run of the same second has it, the first free one of -2, -3, …"""
    numbers = itertools.count(2)
    folder = root
    while True:
        try:
            return _folder(folder)
        except AlreadyExists:
            folder = root.with_name(f"{root.name}-{next(numbers)}")


def _folder(root: Path) -> RunPaths:
    try:
        root.mkdir(parents=True)
    except FileExistsError:
        raise AlreadyExists(f"{root} exists; choose another run_id") from None
    except OSError as error:
        raise FailedPrecondition(f"{root} cannot be made: {error.strerror}", reason="CANNOT_WRITE") from error
    return RunPaths(root.resolve())
