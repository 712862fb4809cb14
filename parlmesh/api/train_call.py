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
from typing import TYPE_CHECKING, Any, Literal

from parlmesh.client.config import seconds_in
from parlmesh.config import load
from parlmesh.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    FleetError,
    InvalidInput,
    without_frames,
)
from parlmesh.function_tasks import stop_import
from parlmesh.learning_curve import curves_figure, returns_figure
from parlmesh.local.presets import settings_file
from parlmesh.local.process_configs import RunPaths, UpConfig, environment_id, fresh_run_id
from parlmesh.processes import merged
from parlmesh.security import SecurityConfig
from parlmesh.types import Array

from .policy import TrainedPolicy
from .progress_bar import progress_bar
from .run_follower import Follower, Progress
from .train_arguments import (
    check_callbacks,
    check_security,
    environment_section,
    known_only_here,
    plain,
    plugin_sources,
    section_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Callback = Callable[["TrainingRun"], None]

_START_SECONDS = 120.0
_ANSWER_SECONDS = 5.0
_FREE_PORTS = {"scheduler": 0, "learner": 0, "metrics": 0}


class Curves(dict[str, tuple[Array, Array]]):
    """Curves by name; a name that is missing is answered with those that there are."""

    def __missing__(self, name: str) -> tuple[Array, Array]:
        known = ", ".join(sorted(self)) or "none yet"
        raise KeyError(f"the run has no curve {name!r}; it has {known}")


class TrainingRun:
    """A run that continues in the background until it ends or is stopped. May be used from any thread."""

    def __init__(
        self,
        run_id: str,
        folder: Path | None,
        follower: Follower,
        callbacks: Mapping[str, Callback],
        plugins: Sequence[str] = (),
    ) -> None:
        self.run_id = run_id
        self.folder = folder
        """Folder of the run's files; None on a remote learner."""
        self._follower = follower
        self._callbacks = callbacks
        self._plugins = tuple(plugins)
        self._calling = 0
        self._changed = threading.Condition()
        self._progress = Progress()
        self._show: Callable[[Progress], None] = lambda progress: None
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._is_own_error = False
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
        return Curves(self._follower.curves())

    def plot(self, *names: str) -> "Figure":
        """A matplotlib figure of the returns so far, or of the named curves; a notebook shows it below the cell."""
        curves = self.curves
        if names:
            return curves_figure(curves, [name for name in names if len(curves[name][0])], self.run_id)
        return returns_figure(curves, f"{self._progress.environment.get('id', '')}, run {self.run_id}".lstrip(", "))

    @property
    def policy(self) -> TrainedPolicy:
        """The best evaluated policy so far, or the newest if none was evaluated."""
        blob = self._follower.best_policy()
        return TrainedPolicy(blob, self._progress.environment, plugins=self._plugins)

    def pause(self) -> None:
        """Pauses training until `resume`; waits for a run that still starts."""
        self._command("Pause", "paused")

    def resume(self) -> None:
        """Continues after a pause."""
        self._command("Resume", "running")

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
            # Of an error of the fleet, the frames say nothing; of a callback's, they do.
            if isinstance(self._error, FleetError) and not self._is_own_error:
                raise without_frames(self._error)
            raise self._error
        return self

    def watch(self, show: Callable[[Progress], None]) -> None:
        """Calls `show` with all progress from now on."""
        self._show = show

    def start(self) -> None:
        """Starts the run; call it once."""
        self._thread.start()

    def _command(self, word: Literal["Pause", "Resume"], wanted: str) -> None:
        is_inside = threading.get_ident() == self._calling
        self._wait_until(lambda: self._progress.state not in ("starting", "created"), _START_SECONDS)
        if self._progress.state == wanted:
            return
        if self._ended.is_set():
            where = f"; `parlmesh up --resume {self.folder}` continues it" if self.folder else ""
            raise FailedPrecondition(f"run {self.run_id} has ended ({self._progress.state}){where}", reason="RUN_ENDED")
        self._follower.command(word)
        if not is_inside:
            self._wait_until(lambda: self._progress.state == wanted, _ANSWER_SECONDS)

    def _wait_until(self, reached: Callable[[], bool], seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: reached() or self._ended.is_set(), seconds)

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
            with self._changed:
                self._ended.set()
                self._changed.notify_all()

    def _told(self, progress: Progress) -> None:
        with self._changed:
            before, self._progress = self._progress, progress
            self._changed.notify_all()
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
            self._error, self._is_own_error = error, True
            self._follower.stop()
        finally:
            self._calling = 0


def train(
    environment: str | type | Mapping[str, Any] = "",
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

    `environment` is an id, a class of environments, or a mapping as in `training.environment`. `settings` are keys of
    the configuration's `training` section, e.g. {"ppo": {"learning_rate": 1e-3}}; `preset` is the name of a built-in
    preset, or a file; `actors` is 2 unless it says otherwise. Waits for the end, with a progress bar in a terminal or
    a notebook; `wait=False` returns the handle at once. Callbacks get the run as argument; if one raises, the run ends.
    """
    stop_import()
    ours = {"actors": actors, "serial": serial or None, "plugins": plugins or None}
    name, value = next(((name, value) for name, value in ours.items() if value is not None), ("", None))
    if learner and name:
        raise InvalidInput(
            f"{name} is {value}, but the learner at {learner} has its own fleet; leave {name} out",
            reason="INVALID_CHOICE",
        )
    section, brought = environment_section(environment, learner) if environment else ({}, ())
    named = plugin_sources(plugins)
    fleet = _fleet(actors, serial=serial, run_id=run_id)
    config = _config(section, algorithm, steps, goal, seed, preset, settings, fleet)
    here = (*config.plugins, *named)
    config = config.model_copy(update={"plugins": (*here, *brought)})
    if security is not None:
        check_security(security)
        config = config.model_copy(update={"security": security})
    given = {
        "on_progress": on_progress,
        "on_evaluation": on_evaluation,
        "on_checkpoint": on_checkpoint,
        "on_end": on_end,
    }
    callbacks = {name: each for name, each in given.items() if each is not None}
    check_callbacks(callbacks)
    name = run_id or fresh_run_id(environment_id(config), datetime.now().astimezone())
    if learner:
        # Other programs may name their runs in the same second.
        name = run_id or f"{name}-{secrets.token_hex(3)}"
        run = TrainingRun(name, None, Follower.remote(config, learner, name), callbacks)
    else:
        paths = _folder(Path(runs_dir) / name) if run_id else _fresh_folder(Path(runs_dir) / name)
        name = paths.root.name
        run = TrainingRun(
            name, paths.root, Follower.local(config.model_copy(update={"run_id": name}), paths), callbacks, here
        )
    run.start()
    if wait:
        try:
            with progress_bar(run, shown=progress):
                run.wait()
        except KeyboardInterrupt as interrupt:
            run.stop()
            interrupt.add_note(_kept(run))
            raise
        except FleetError as error:
            hint = known_only_here(environment_id(config)) if "cannot be made" in error.message else ""
            if hint:
                error.add_note(hint)
            raise
    return run


def _kept(run: TrainingRun) -> str:
    """What an interrupted run leaves."""
    if run.folder is None:
        return f"{run!r}"
    folder = str(run.folder)
    return f"{run!r}; parlmesh.load_policy({folder!r}) reads its policy, `parlmesh up --resume {folder}` continues it"


def _config(
    environment: Mapping[str, Any],
    algorithm: str,
    steps: int | None,
    goal: float | None,
    seed: int | None,
    preset: str | Path,
    settings: Mapping[str, Any] | None,
    fleet: Sequence[str],
) -> UpConfig:
    given = section_of(settings)
    file = settings_file(Path(preset)) if preset else None
    config = load(UpConfig, file=file, overrides=fleet, environment=os.environ, prefix="PARLMESH_UP")
    wanted = {"algorithm": algorithm or None, "step_budget": steps, "goal_return": goal, "seed": seed}
    training: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if environment:
        training["environment"] = dict(environment)
        if goal is None and not preset:
            training["goal_return"] = None  # only the budget ends the run
    merged_training = merged(merged(config.training, training), given)
    ports = config.ports.model_copy(update=_FREE_PORTS)
    return config.model_copy(update={"training": plain(merged_training, "training"), "ports": ports})


def _fleet(actors: int | None, *, serial: bool, run_id: str) -> list[str]:
    """The arguments that override the preset, so that they are checked as its own values are."""
    given = {"actors": actors, "serial": "true" if serial else None, "run_id": run_id or None}
    return [f"{name}={value}" for name, value in given.items() if value is not None]


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
