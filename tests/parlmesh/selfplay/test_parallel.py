"""Workers for a custom loop: collected from, paused, killed and stopped, and no process is left."""

import os
import signal
import time

import psutil
import pytest

from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.selfplay.parallel import ParallelManager

GAME = {"id": "games/tictactoe"}
MODEL = {"input_dim": 18, "hidden_dim": 16, "action_dim": 9}
POOL = {"num_workers": 2, "games_per_worker": 4, "experience_batch_size": 16, "timeout": 30.0}


def children():
    return psutil.Process().children(recursive=True)


@pytest.mark.e2e
def test_workers_collect_follow_the_model_survive_a_kill_and_leave_nothing():
    before = {process.pid for process in children()}
    with ParallelManager(GAME, MODEL, POOL) as manager:
        assert manager.start_workers() == 2
        first = manager.collect_experiences(target=40)
        assert sum(each.steps for each in first) >= 40
        assert {each.version for each in first} == {1}
        assert first[0].columns["observation"].shape == (5, 4, 2, 3, 3)
        assert manager.sync_model_to_workers() == 2
        manager.pause_workers([0])
        assert manager.get_status()["workers"]["0"] == "paused"
        versions = {each.version for _ in range(6) for each in manager.collect_experiences(target=16)}
        assert 2 in versions
        manager.resume_workers([0])
        manager.reset_workers([0])
        victim = next(
            process
            for process in children()
            if process.pid not in before and any("local-1" in part for part in process.cmdline())
        )
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait(60)
        assert not victim.is_running()
        after = manager.collect_experiences(target=40)
        assert sum(each.steps for each in after) >= 40
        status = manager.get_status()
        assert status["steps"] >= 80
        assert status["queue_info"]["outstanding"] <= 2
    _, alive = psutil.wait_procs([each for each in children() if each.pid not in before], timeout=10)
    assert not alive
    with pytest.raises(FailedPrecondition):
        manager.collect_experiences()


@pytest.mark.e2e
def test_nothing_comes_from_paused_workers_and_a_collection_ends_at_its_timeout():
    with ParallelManager(GAME, MODEL, {**POOL, "num_workers": 1}) as manager:
        manager.start_workers()
        manager.pause_workers()
        started = time.monotonic()
        assert manager.collect_experiences(target=10, timeout=0.3) == []
        assert time.monotonic() >= started
        manager.resume_workers()
        assert manager.collect_experiences(target=10)


def test_configurations_are_checked_by_name():
    with pytest.raises(InvalidInput, match="num_workers"):
        ParallelManager(GAME, MODEL, {"num_workers": 0})
    with pytest.raises(InvalidInput, match="queue_size"):
        ParallelManager(GAME, MODEL, {"queue_size": 1})
    with pytest.raises(InvalidInput, match="input_dim must be 3726"):
        ParallelManager({"board_size": 9, "max_moves": 200}, {"input_dim": 81 * 14, "hidden_dim": 8})
    manager = ParallelManager({"board_size": 9}, {"input_dim": 81 * 46, "action_dim": 13_527, "hidden_dim": 4})
    with pytest.raises(FailedPrecondition):
        manager.get_status()
