"""Games that hang or crash and workers that are killed: the pool continues, its counts agree, and no process is
left."""

import os
import socket
import sys
import time

import psutil
import pytest

from parlmesh.errors import Unavailable
from parlmesh.selfplay.parallel import ParallelManager

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = {"input_dim": 18, "hidden_dim": 16, "action_dim": 9}
POOL = {"num_workers": 2, "games_per_worker": 4, "experience_batch_size": 16, "timeout": 5.0}

# One worker of the pool removes the flag and does what it says; the others play on.
FAULTY = """
import os, time
from functools import partial
import gymnasium
from parlmesh.selfplay.environment import GameEnvironments
from parlmesh.selfplay.games.tictactoe import TicTacToe

FOLDER = os.path.dirname(__file__)

class Faulty(TicTacToe):
    def play(self, which, moves):
        for fault in ("hang", "crash", "raise"):
            try:
                os.rename(f"{FOLDER}/{fault}.flag", f"{FOLDER}/{fault}.done")
            except FileNotFoundError:
                continue
            if fault == "hang":
                time.sleep(3600)
            if fault == "crash":
                os._exit(7)
            raise RuntimeError("planted")
        return super().play(which, moves)

gymnasium.register(id="faulty/tictactoe", vector_entry_point=partial(GameEnvironments, make=Faulty),
                   disable_env_checker=True, order_enforce=False)
"""


def children():
    return psutil.Process().children(recursive=True)


def ports(processes):
    found = set()
    for process in processes:
        try:
            found |= {each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
        except psutil.NoSuchProcess:
            continue
    return found


class Books:
    """The steps handed out, beside the pool's own counts."""

    def __init__(self, manager):
        self._manager = manager
        self.steps = self.batches = 0

    def collect(self, target):
        """Collects this many more steps; a hanging collection ends the test by its timeout."""
        wanted, deadline = self.steps + target, time.monotonic() + 120.0
        while self.steps < wanted:
            assert time.monotonic() < deadline, "nothing comes any more"
            found = self._manager.collect_experiences(target=16)
            self.steps += sum(each.steps for each in found)
            self.batches += len(found)
        return self._agree()

    def _agree(self):
        status = self._manager.get_status()
        assert (status["steps"], status["batches"]) == (self.steps, self.batches)
        return status


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    (tmp_path / "faulty_games.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    yield {"id": "faulty_games:faulty/tictactoe"}
    sys.modules.pop("faulty_games", None)


def ended(before, listening):
    _, alive = psutil.wait_procs([each for each in children() if each.pid not in before], timeout=10)
    assert not alive
    for port in listening:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))


@pytest.mark.parametrize("fault", ["hang", "crash", "raise"])
def test_a_game_that_fails_costs_its_batch_and_nothing_else(faulty, fault, tmp_path):
    before = {process.pid for process in children()}
    with ParallelManager(faulty, MODEL, POOL) as manager:
        assert manager.start_workers() == 2
        books = Books(manager)
        books.collect(32)
        (tmp_path / f"{fault}.flag").touch()
        books.collect(200)
        assert (tmp_path / f"{fault}.done").exists(), "the fault did not take place"
        status = books.collect(64)
        assert status["active_workers"] == 2 or fault != "raise"
        listening = ports(children())
        assert listening
        stopping = time.monotonic()
        manager.stop_workers()
        print(f"stopped after {time.monotonic() - stopping:.1f} s")
    ended(before, listening)


def test_workers_that_are_killed_twenty_times_are_replaced():
    before = {process.pid for process in children()}
    # A worker that ends nine times within a minute is given up; with three workers, none is killed that often.
    with ParallelManager({"id": "games/tictactoe"}, MODEL, {**POOL, "num_workers": 3}) as manager:
        manager.start_workers()
        books = Books(manager)
        for killed in range(20):
            books.collect(32)
            kill(f"local-{killed % 3}", before)
        status = books.collect(64)
        assert status["queue_info"]["outstanding"] <= 3
        assert manager.get_status()["trouble"] == ""
        listening = ports(children())
    ended(before, listening)


def test_a_pool_whose_workers_are_killed_repeatedly_reports_that_none_is_left():
    before = {process.pid for process in children()}
    with ParallelManager({"id": "games/tictactoe"}, MODEL, {**POOL, "num_workers": 1}) as manager:
        manager.start_workers()
        Books(manager).collect(16)
        for _ in range(9):
            kill("local-0", before)
        with pytest.raises(Unavailable, match="no worker is left: local-0 ended 9 times within 60 s"):
            _collect_often(manager)
        listening = ports(children())
    ended(before, listening)


def _collect_often(manager):
    for _ in range(20):
        manager.collect_experiences(target=16)


def kill(name, before):
    """Kills the worker of that name as soon as it exists."""
    deadline = time.monotonic() + 60.0
    while True:
        assert time.monotonic() < deadline, f"{name} was not started again"
        for each in children():
            if each.pid not in before and any(name in part for part in _command(each)):
                each.kill()
                psutil.wait_procs([each], timeout=30)
                assert not each.is_running()
                return
        time.sleep(0.02)


def _command(process):
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
