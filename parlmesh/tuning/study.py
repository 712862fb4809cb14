"""A study on disk, used by one process at a time. After a crash, the next process finds all finished trials."""

import contextlib
import fcntl
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from parlmesh.errors import FailedPrecondition, FleetError

from .config import TuneConfig
from .search_space import decoded, defaults, suggested

NAME = "study"
_FILES = {"journal": "study.journal", "sqlite": "study.sqlite"}


@contextmanager
def opened_study(folder: Path, config: TuneConfig) -> Iterator["Study"]:
    """The study in a folder, created if missing. Raises FailedPrecondition while another process uses it."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "owner.lock").open("w") as owner:
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FailedPrecondition(f"another process is running the study in {folder}") from None
        yield _opened(folder, config)


def _opened(folder: Path, config: TuneConfig) -> "Study":
    try:
        return Study(_loaded(folder, config), config)
    except FleetError:
        raise
    except Exception as error:
        # Errors of Optuna and of its database have no common base class.
        raise _unreadable(str(folder / _FILES[config.storage]), error) from error


def _unreadable(what: str, error: Exception) -> FailedPrecondition:
    return FailedPrecondition(f"{what} cannot be read as a study: {error!a:.300}", reason="STUDY")


def _loaded(folder: Path, config: TuneConfig) -> optuna.Study:
    file = folder / _FILES[config.storage]
    if config.storage == "journal":
        # This process owns the study, so any lock file was left by one that died.
        for left in folder.glob(f"{file.name}.*lock*"):
            with contextlib.suppress(OSError):
                os.unlink(left)
        _cut_torn_line(file)
        storage: Any = JournalStorage(JournalFileBackend(str(file)))
    else:
        storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
    study = optuna.create_study(
        study_name=NAME,
        storage=storage,
        direction="maximize",
        load_if_exists=True,
        pruner=_pruner(config),
    )
    # A resumed study must not propose its first trials again.
    study.sampler = _sampler(config, config.seed + len(study.get_trials(deepcopy=False)))
    return study


def _cut_torn_line(file: Path) -> None:
    """Removes a torn last line. Optuna ignores it at first, but cannot read the file once another line follows."""
    if not file.exists():
        return
    data = file.read_bytes()
    start = data[:-1].rfind(b"\n") + 1
    try:
        whole = data.endswith(b"\n") and isinstance(json.loads(data[start:]), dict)
    except (ValueError, RecursionError):
        whole = False
    if data and not whole:
        os.truncate(file, start)


def _sampler(config: TuneConfig, seed: int) -> optuna.samplers.BaseSampler:
    if config.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if config.sampler == "cmaes":
        return optuna.samplers.CmaEsSampler(seed=seed, n_startup_trials=config.startup_trials)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=config.startup_trials, constant_liar=True)


def _pruner(config: TuneConfig) -> optuna.pruners.BasePruner:
    if config.pruner == "none" or config.rungs == 1:
        return optuna.pruners.NopPruner()
    if config.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=config.rungs, reduction_factor=3)
    return optuna.pruners.MedianPruner(n_startup_trials=config.startup_trials, n_warmup_steps=1)


class Study:
    """Proposes settings and records their results. Not thread-safe."""

    def __init__(self, study: optuna.Study, config: TuneConfig) -> None:
        self._study, self._config = study, config
        self.orphans = self._give_back_orphans()
        if config.try_defaults and not study.get_trials(deepcopy=False):
            study.enqueue_trial(defaults(config))

    def _give_back_orphans(self) -> int:
        """Fails trials whose coordinator died, and queues their settings again."""
        found = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        for trial in found:
            self._study.tell(trial.number, state=TrialState.FAIL)
            self._study.enqueue_trial(trial.params)
        return len(found)

    @property
    def left(self) -> int:
        """Trials still to do; failed trials count as done, interrupted ones do not."""
        return max(0, self._config.trials - len(self._ended()))

    def ask(self) -> tuple[optuna.trial.Trial, dict[str, Any]]:
        """A trial and its settings by key."""
        trial = self._study.ask()
        try:
            return trial, suggested(trial, self._config.search)
        except ValueError as error:
            # Earlier trials chose this setting from other values.
            raise _unreadable("the earlier trials", error) from error

    def finished(self, trial: optuna.trial.Trial, value: float) -> None:
        """Records a trial that completed all its parts."""
        self._study.tell(trial, value)

    def pruned(self, trial: optuna.trial.Trial) -> None:
        """Records a trial that was ended early; its last report is its value."""
        self._study.tell(trial, state=TrialState.PRUNED)

    def failed(self, trial: optuna.trial.Trial, why: str) -> None:
        """Records a trial whose settings cannot be trained."""
        trial.set_user_attr("why", why)
        self._study.tell(trial, state=TrialState.FAIL)

    def given_back(self, trial: optuna.trial.Trial) -> None:
        """Fails an interrupted trial and queues its settings again."""
        self._study.tell(trial, state=TrialState.FAIL)
        self._study.enqueue_trial(trial.params)

    def best(self) -> "tuple[int, float, dict[str, Any]] | None":
        """Number, value and settings of the best finished trial."""
        finished = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if not finished:
            return None
        best = max(finished, key=lambda trial: trial.value if trial.value is not None else float("-inf"))
        assert best.value is not None
        return best.number, best.value, decoded(best.params, self._config.search)

    def first_value(self) -> float | None:
        """The value of the trial with the unchanged settings; None if a setting lies outside its range."""
        finished = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        wanted = defaults(self._config)
        if not self._config.try_defaults or len(wanted) < len(self._config.search):
            return None
        return next((trial.value for trial in finished if trial.params == wanted), None)

    def counts(self) -> dict[str, int]:
        """Number of trials by how they ended."""
        found = {"finished": 0, "pruned": 0, "failed": 0}
        words = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
        for trial in self._ended():
            found[words[trial.state]] += 1
        return found

    def importances(self) -> dict[str, float]:
        """How much each setting explains of the trials' values, highest first; empty for fewer than four trials."""
        finished = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(finished) < 4 or len({trial.value for trial in finished}) < 2:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        try:
            return dict(optuna.importance.get_param_importances(self._study, evaluator=evaluator))
        except (ValueError, RuntimeError):
            # Every trial had the same value of some setting.
            return {}

    def _ended(self) -> list[optuna.trial.FrozenTrial]:
        states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        return [
            trial
            for trial in self._study.get_trials(deepcopy=False, states=states)
            if trial.state != TrialState.FAIL or "why" in trial.user_attrs
        ]
