"""wandb at the edge of the process: a stand-in module, as it would be imported."""

import builtins
import sys
import types

import pytest

from learner.config import WandbConfig
from learner.files.weights_and_biases import NoTracker, open_tracker


class Run:
    def __init__(self, settings):
        self.settings, self.logged, self.finished, self.broken = settings, [], 0, False

    def define_metric(self, name, step_metric):
        self.axis = (name, step_metric)

    def log(self, values):
        if self.broken:
            raise ConnectionError("no wandb today")
        self.logged.append(values)

    def finish(self):
        self.finished += 1


@pytest.fixture
def runs(monkeypatch):
    made = []

    def init(**settings):
        made.append(Run(settings))
        return made[-1]

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    return made


def opened(tmp_path, **settings):
    return open_tracker(WandbConfig(**settings), "r", tmp_path / "run", {"seed": 3})


def test_nothing_is_imported_unless_asked(tmp_path, runs):
    assert isinstance(opened(tmp_path), NoTracker)
    assert runs == []


def test_every_point_arrives_under_our_own_step(tmp_path, runs):
    tracker = opened(tmp_path, enabled=True, project="p")
    tracker.record(10, {"loss/policy": 0.5})
    tracker.record(5, {"loss/policy": 0.7})
    tracker.close()
    (run,) = runs
    assert run.logged == [{"loss/policy": 0.5, "environment_steps": 10}, {"loss/policy": 0.7, "environment_steps": 5}]
    assert run.axis == ("*", "environment_steps")
    assert run.finished == 1
    wanted = {"project": "p", "mode": "offline", "id": "r", "config": {"seed": 3}, "dir": str(tmp_path / "run")}
    assert wanted.items() <= run.settings.items()


def test_an_absent_wandb_is_one_warning(tmp_path, monkeypatch, caplog):
    real = builtins.__import__

    def absent(name, *arguments):
        if name == "wandb":
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", absent)
    tracker = opened(tmp_path, enabled=True)
    tracker.record(1, {"a": 1.0})
    tracker.close()
    assert caplog.text.count("wandb_missing") == 1


def test_a_wandb_that_cannot_begin_is_one_warning(tmp_path, monkeypatch, caplog):
    def init(**settings):
        raise ValueError("no")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    assert isinstance(opened(tmp_path, enabled=True), NoTracker)
    assert caplog.text.count("wandb_failed") == 1


def test_a_wandb_that_breaks_is_told_nothing_more(tmp_path, runs, caplog):
    tracker = opened(tmp_path, enabled=True)
    runs[0].broken = True
    for step in range(3):
        tracker.record(step, {"a": 1.0})
    tracker.close()
    assert caplog.text.count("wandb_failed") == 1
    assert runs[0].finished == 0
