from types import SimpleNamespace

import numpy as np
import pytest

from learner import metrics
from learner.experience.queue import ExperienceQueue
from learner.files.recorder import Recorder
from learner.runs.progress import Progress
from learner.runs.update_accounting import BatchFigures, Throughput
from parlmesh.training.trainer import Update
from parlmesh.types import Episode, Fragment, Trajectory

UPDATE = Update(32, {"loss/total": 0.5}, applied=True)


class Written(Recorder):
    def __init__(self):
        self.rows = []

    def record(self, steps, values):
        self.rows.append((steps, values))


class Queue(ExperienceQueue):
    """Two trajectories wait."""

    def __init__(self):
        pass

    def __len__(self):
        return 2


def trajectory(version, **times):
    episodes = [Episode(total_reward=7.0, steps=7)]
    return Trajectory("r", "a", 1, version, version, Fragment({"valid": np.ones((4, 8), bool)}, episodes), **times)


@pytest.fixture
def ledger():
    now = SimpleNamespace(seconds=100.0)
    written, progress = Written(), Progress(version=5, bad_updates=2)
    throughput = Throughput(progress, Queue(), written, lambda: now.seconds, lambda: 1000.0)
    return SimpleNamespace(throughput=throughput, progress=progress, rows=written.rows, now=now)


def test_lags_are_those_to_the_version_that_was_trained(ledger):
    figures = BatchFigures.of([trajectory(5), trajectory(2)], ledger.progress.version)
    ledger.progress.version += 1
    ledger.throughput.add(figures, UPDATE, waited=1.0, updated=2.0)
    progress = ledger.progress
    assert (progress.policy_lag, progress.max_policy_lag_seen) == (1.5, 3)
    assert (progress.steps, progress.updates, progress.bad_updates) == (32, 1, 0)
    assert (progress.episodes, progress.episode_return) == (2, 7.0)
    ((steps, values),) = ledger.rows
    assert (steps, values["policy/version"], values["policy/lag"]) == (32, 6.0, 1.5)
    assert values["experience/queued_trajectories"] == 2.0
    assert (values["loss/total"], values["return/episodes"]) == (0.5, 7.0)
    assert (values["experience/waited_seconds"], values["update/seconds"]) == (1.0, 2.0)


def test_the_slowest_step_is_remembered_and_forgotten_slowly(ledger):
    """The deadline of evaluations follows from it."""
    for seconds, expected in ((3.2, 0.1), (0.32, 0.09), (6.4, 0.2)):
        batch = [trajectory(5, collect_seconds=0.032), trajectory(5, collect_seconds=seconds)]
        ledger.throughput.add(BatchFigures.of(batch, 5), UPDATE, waited=0.0, updated=0.0)
        assert ledger.throughput.step_seconds == pytest.approx(expected)


def test_who_waits_for_whom_is_told_of_both_sides(ledger):
    batch = [trajectory(5, waited_seconds=3.0, collect_seconds=1.0)]
    ledger.now.seconds += 10.0
    ledger.throughput.add(BatchFigures.of(batch, 5), UPDATE, waited=2.0, updated=8.0)
    assert ledger.throughput.learner_waiting.ratio() == pytest.approx(0.2)
    assert ledger.throughput.actors_waiting.ratio() == pytest.approx(0.75)
    ((_, values),) = ledger.rows
    assert values["experience/learner_idle_ratio"] == pytest.approx(0.2)
    assert values["experience/actor_idle_ratio"] == pytest.approx(0.75)


def test_experience_has_an_age_when_its_time_is_known_and_none_comes_from_the_future(ledger, monkeypatch):
    ages: list[float] = []
    monkeypatch.setattr(metrics, "EXPERIENCE_AGE", SimpleNamespace(observe=ages.append))
    batch = [trajectory(5), trajectory(5, collect_time=996.0), trajectory(5, collect_time=1005.0)]
    ledger.throughput.add(BatchFigures.of(batch, 5), UPDATE, waited=0.0, updated=0.0)
    assert ages == [4.0, 0.0]


def test_a_strangers_words_are_kept_in_bounds():
    progress = Progress()
    progress.note_failure("x" * 10**6, "y" * 10**6)
    assert (len(progress.last_failure), len(progress.last_failure_traceback)) == (1_000, 10_000)
