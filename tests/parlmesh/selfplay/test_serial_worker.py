"""If no worker can be started or none is wanted, this process does their work and says so."""

import pytest

from parlmesh.client.sync import Controller
from parlmesh.errors import FailedPrecondition, Unavailable
from parlmesh.selfplay.parallel import ParallelManager

GAME = {"id": "games/tictactoe"}
MODEL = {"input_dim": 18, "hidden_dim": 16, "action_dim": 9}
POOL = {"num_workers": 2, "games_per_worker": 4, "experience_batch_size": 16, "timeout": 30.0}


def collected(manager):
    assert manager.start_workers() == 1
    found = manager.collect_experiences(target=40)
    status = manager.get_status()
    assert status["serial"]
    assert status["steps"] == sum(each.steps for each in found) >= 40
    assert status["batches"] == len(found)
    return found


def test_this_process_collects_follows_the_model_pauses_and_stops():
    with ParallelManager(GAME, MODEL, {**POOL, "serial": True}) as manager:
        first = collected(manager)
        assert {each.version for each in first} == {1}
        assert first[0].columns["observation"].shape == (5, 4, 2, 3, 3)
        assert manager.sync_model_to_workers() == 2
        manager.pause_workers()
        assert manager.collect_experiences(target=10) == []
        assert manager.get_status()["active_workers"] == 0
        manager.resume_workers()
        manager.reset_workers()
        assert {each.version for each in manager.collect_experiences(target=10)} == {2}
        with pytest.raises(FailedPrecondition, match="already started"):
            manager.start_workers()
    with pytest.raises(FailedPrecondition):
        manager.collect_experiences()


def test_it_stands_in_for_workers_that_cannot_be_started(monkeypatch):
    def refuse(self, *arguments, **settings):
        raise Unavailable("no process can be started here")

    monkeypatch.setattr(Controller, "initialize", refuse)
    with ParallelManager(GAME, MODEL, POOL) as manager:
        assert collected(manager)
