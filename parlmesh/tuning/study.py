"""A study on disk: one process at a time asks and tells; whoever comes after a crash finds all that was finished."""

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
    """The study of a folder, made when there is none. FailedPrecondition while another process has it."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "owner.lock").open("w") as owner:
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FailedPrecondition(f"the study in {folder} is being run by another process") from None
        yield _opened(folder, config)


def _opened(folder: Path, config: TuneConfig) -> "Study":
    try:
        return Study(_loaded(folder, config), config)
    except FleetError:
        raise
    except Exception as error:
        # Optuna's own errors and those of the database under it have nothing in common.
        raise _unreadable(str(folder / _FILES[config.storage]), error) from error


def _unreadable(what: str, error: Exception) -> FailedPrecondition:
    return FailedPrecondition(f"{what} cannot be read as a study: {error!a:.300}", reason="STUDY")


def _loaded(folder: Path, config: TuneConfig) -> optuna.Study:
    file = folder / _FILES[config.storage]
    if config.storage == "journal":
        # Nobody else has the study, so a lock that is there was left by someone who died.
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
    # One that goes on must not propose its first trials again.
    study.sampler = _sampler(config, config.seed + len(study.get_trials(deepcopy=False)))
    return study


def _cut_torn_line(file: Path) -> None:
    """Optuna passes over a last line that a kill tore, and fails for ever once another is written after it."""
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
    """Asks for settings and is told what came of them. Not for several threads."""

    def __init__(self, study: optuna.Study, config: TuneConfig) -> None:
        self._study, self._config = study, config
        self.orphans = self._give_back_orphans()
        if config.try_defaults and not study.get_trials(deepcopy=False):
            study.enqueue_trial(defaults(config))

    def _give_back_orphans(self) -> int:
        """Trials that were running when their coordinator died are failed, and their settings queued again."""
        found = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        for trial in found:
            self._study.tell(trial.number, state=TrialState.FAIL)
            self._study.enqueue_trial(trial.params)
        return len(found)

    @property
    def left(self) -> int:
        """Trials that the study still has to finish; failed ones count, given back ones do not."""
        return max(0, self._config.trials - len(self._ended()))

    def ask(self) -> tuple[optuna.trial.Trial, dict[str, Any]]:
        """A trial and its settings by key."""
        trial = self._study.ask()
        try:
            return trial, suggested(trial, self._config.search)
        except ValueError as error:
            # A setting that earlier trials drew from other values.
            raise _unreadable("what was tried so far", error) from error

    def finished(self, trial: optuna.trial.Trial, value: float) -> None:
        """It had all its parts."""
        self._study.tell(trial, value)

    def pruned(self, trial: optuna.trial.Trial) -> None:
        """It was ended early; the last report is its value."""
        self._study.tell(trial, state=TrialState.PRUNED)

    def failed(self, trial: optuna.trial.Trial, why: str) -> None:
        """Its settings cannot be trained."""
        trial.set_user_attr("why", why)
        self._study.tell(trial, state=TrialState.FAIL)

    def given_back(self, trial: optuna.trial.Trial) -> None:
        """It was interrupted through no fault of its own: its settings are tried again by whoever goes on."""
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
        """What the settings as they are came to, where they were tried: all of them, not those that a range holds."""
        finished = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        wanted = defaults(self._config)
        if not self._config.try_defaults or len(wanted) < len(self._config.search):
            return None
        return next((trial.value for trial in finished if trial.params == wanted), None)

    def counts(self) -> dict[str, int]:
        """Trials by their end."""
        found = {"finished": 0, "pruned": 0, "failed": 0}
        words = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
        for trial in self._ended():
            found[words[trial.state]] += 1
        return found

    def importances(self) -> dict[str, float]:
        """How much of what trials came to each setting explains, the most first; empty for fewer than four trials."""
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
