"""Studies on disk."""

import pytest

pytest.importorskip("optuna")

from parlmesh.errors import FailedPrecondition
from parlmesh.tuning.config import TuneConfig
from parlmesh.tuning.study import opened_study

SEARCH = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "ppo.epochs": {"low": 1, "high": 9}}


def config(**changes):
    return TuneConfig.model_validate({"search": SEARCH, "trials": 6, "startup_trials": 2, **changes})


def worth(values):
    return -abs(values["ppo.epochs"] - 5) - values["ppo.learning_rate"]


def run(study, count):
    for _ in range(count):
        trial, values = study.ask()
        study.finished(trial, worth(values))


@pytest.mark.parametrize("storage", ["journal", "sqlite"])
@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "random"])
def test_a_study_continues_where_it_was_and_starts_with_the_unchanged_settings(tmp_path, storage, sampler):
    settings = config(storage=storage, sampler=sampler)
    with opened_study(tmp_path, settings) as study:
        trial, values = study.ask()
        assert values == {"ppo.learning_rate": 0.003, "ppo.epochs": 4}
        study.finished(trial, worth(values))
        run(study, 2)
        best = study.best()
    with opened_study(tmp_path, settings) as study:
        assert (study.left, study.best(), study.orphans) == (3, best, 0)
        assert study.first_value() == pytest.approx(-1.003)
        run(study, 3)
        assert study.left == 0
        assert study.counts() == {"finished": 6, "pruned": 0, "failed": 0}


def test_only_a_trial_with_all_settings_unchanged_counts_as_theirs(tmp_path):
    """The default bonus is 0, which no logarithm reaches: the first trial draws it."""
    bonus = {"low": 1e-4, "high": 1e-2, "log": True}
    with opened_study(tmp_path, config(search={**SEARCH, "ppo.entropy_coefficient": bonus})) as study:
        run(study, 1)
        assert study.first_value() is None


def test_a_trial_that_was_running_when_its_process_died_is_tried_again_and_not_counted(tmp_path):
    with opened_study(tmp_path, config()) as study:
        run(study, 2)
        _, cut_off = study.ask()
    with opened_study(tmp_path, config()) as study:
        assert study.orphans == 1
        assert study.left == 4
        assert study.ask()[1] == cut_off


def test_a_lock_that_a_dead_process_left_is_no_obstacle(tmp_path):
    with opened_study(tmp_path, config()) as study:
        run(study, 1)
    (tmp_path / "study.journal.lock").symlink_to("study.journal")
    with opened_study(tmp_path, config()) as study:
        run(study, 1)
        assert study.left == 4


def test_two_processes_cannot_share_a_study(tmp_path):
    with (
        opened_study(tmp_path, config()),
        pytest.raises(FailedPrecondition, match="another process"),
        opened_study(tmp_path, config()),
    ):
        pass


def test_equal_seeds_propose_equal_settings_and_going_on_proposes_others(tmp_path):
    def proposed(folder, seed):
        with opened_study(folder, config(seed=seed, sampler="random")) as study:
            found = []
            for _ in range(3):
                trial, values = study.ask()
                study.finished(trial, worth(values))
                found.append(values)
            return found

    first = proposed(tmp_path / "a", 1)
    assert first == proposed(tmp_path / "b", 1)
    assert first != proposed(tmp_path / "c", 2)
    assert not any(values in first for values in proposed(tmp_path / "a", 1))


def test_a_trial_below_the_median_of_the_others_is_pruned(tmp_path):
    with opened_study(tmp_path, config(rungs=3)) as study:
        for _ in range(3):
            trial, _ = study.ask()
            for rung in (1, 2, 3):
                trial.report(10.0, rung)
            study.finished(trial, 10.0)
        trial, _ = study.ask()
        trial.report(1.0, 1)
        trial.report(1.0, 2)
        assert trial.should_prune()
        study.pruned(trial)
        failing, _ = study.ask()
        study.failed(failing, "not finite")
        assert study.counts() == {"finished": 3, "pruned": 1, "failed": 1}
        assert study.left == 1


def test_what_matters_more_is_found_to_matter_more(tmp_path):
    with opened_study(tmp_path, config(trials=60, sampler="random")) as study:
        run(study, 60)
        found = study.importances()
    assert list(found) == ["ppo.epochs", "ppo.learning_rate"]
