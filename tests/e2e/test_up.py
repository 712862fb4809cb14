"""`parlmesh up` as a user runs it: a real fleet of real processes, killed for real."""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import psutil
import pytest
import yaml

from parlmesh.testing import wait_until
from parlmesh.v1.scheduler_service_pb2 import ACTOR_STATE_READY, Actor, ListActorsRequest
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from parlmesh.v1.training_service_pb2 import GetTrainingRequest, StopTrainingRequest, TrainingProgress
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub

pytestmark = pytest.mark.e2e

PATIENCE = 60.0
# Looking at a fleet costs calls and a walk over its processes, on the fleet's own cores.
LOOK = 0.1
ENDLESS = ("--steps", "100000000", "--no-goal")
SHORT = ("--steps", "6000", "--no-goal")


class Up:
    """One `parlmesh up`, its children and its run directory; killed at the end of the `with` block."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.root = folder / "runs" / "one"
        self._output = (folder / "output.txt").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "parlmesh.cli", "up", "--free-ports", "--plain", "--runs-dir", str(folder / "runs")]
            + ([] if "--resume" in arguments else ["--run-id", "one"])
            + list(arguments),
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "COLUMNS": "200"},
        )
        self.seen: dict[int, str] = {}
        self.ports: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        if error is not None:
            error.add_note(self.output())
            for log in sorted((self.root / "logs").glob("*.log")):
                error.add_note("\n".join([log.name, *log.read_text(errors="replace").splitlines()[-8:]]))
        self._output.close()

    def output(self) -> str:
        self._output.flush()
        return Path(self._output.name).read_text()

    def children(self) -> dict[str, psutil.Process]:
        """The living service processes by the name of their settings file; remembers them and their ports."""
        found = {}
        try:
            candidates = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return {}
        for child in candidates:
            try:
                command = " ".join(child.cmdline())
                named = re.search(r"--config \S*/([a-z0-9-]+)\.yaml", command)
                # Before it becomes the service, a child is the wrapper that binds it to its parent.
                if named and "bound.py" not in command and child.status() != psutil.STATUS_ZOMBIE:
                    found[named[1]] = child
                    self.seen[child.pid] = named[1]
                    listening = [c for c in child.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
                    self.ports |= {connection.laddr.port for connection in listening}
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def child(self, name: str, other_than: int = 0) -> psutil.Process:
        def living() -> psutil.Process | None:
            assert self.process.poll() is None, f"up ended with {self.process.returncode}"
            child = self.children().get(name)
            return child if child is not None and child.pid != other_than else None

        found: psutil.Process = wait_until(living, PATIENCE, poll_seconds=LOOK)
        return found

    def port(self, service: str) -> int:
        """The address of a service, which restarts keep."""

        def written() -> int:
            file = self.root / f"{service}.yaml"
            return int(yaml.safe_load(file.read_text())["listen"]["port"]) if file.exists() else 0

        return int(wait_until(written, PATIENCE))

    def progress(self) -> TrainingProgress | None:
        with grpc.insecure_channel(f"127.0.0.1:{self.port('learner')}") as channel:
            try:
                return TrainingServiceStub(channel).GetTraining(GetTrainingRequest(), timeout=5).training.progress
            except grpc.RpcError:
                return None

    def trains_past(self, steps: int) -> TrainingProgress:
        def past() -> TrainingProgress | None:
            assert self.process.poll() is None, f"up ended with {self.process.returncode}"
            progress = self.progress()
            return progress if progress is not None and progress.steps > steps else None

        found: TrainingProgress = wait_until(past, PATIENCE, poll_seconds=LOOK)
        self.children()
        return found

    def actors(self) -> dict[str, Actor]:
        with grpc.insecure_channel(f"127.0.0.1:{self.port('scheduler')}") as channel:
            try:
                listed = SchedulerServiceStub(channel).ListActors(ListActorsRequest(), timeout=5)
            except grpc.RpcError:
                return {}
        return {actor.actor_id: actor for actor in listed.actors}

    def ends(self, code: int) -> str:
        found = self.process.wait(PATIENCE)
        assert found == code
        return self.output()

    def left_nothing(self) -> None:
        assert self.seen, "no child was ever seen"
        assert self.ports, "no port was ever seen"
        wait_until(lambda: not [pid for pid in self.seen if psutil.pid_exists(pid)], 60)
        for port in self.ports:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Up]:
    """A fleet that keeps training."""
    with Up(tmp_path, *ENDLESS) as up:
        up.trains_past(0)
        yield up


def events(log: Path, name: str) -> list[dict[str, Any]]:
    # The last line may be incomplete.
    whole = [line for line in log.read_text().splitlines(keepends=True) if line.startswith("{") and line.endswith("\n")]
    return [event for event in map(json.loads, whole) if event.get("event") == name]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Up:
    """A fleet whose run ended, that stayed up after it until Ctrl-C."""
    with Up(tmp_path_factory.mktemp("kept"), *SHORT, "--seed", "3", "--keep") as up:
        wait_until(lambda: "the fleet stays up at learner 127.0.0.1:" in up.output(), PATIENCE, poll_seconds=LOOK)
        wait_until(lambda: len(up.children()) == 4, PATIENCE, poll_seconds=LOOK)
        assert set(up.seen.values()) == {"scheduler", "learner", "actor-0", "actor-1"}
        progress = up.progress()
        assert progress is not None
        assert progress.steps >= 6_000
        up.process.send_signal(signal.SIGINT)
        up.ends(0)
        return up


def test_a_kept_fleet_serves_after_the_end_until_ctrl_c_and_leaves_nothing_behind(kept: Up) -> None:
    kept.left_nothing()


def test_a_run_ends_with_a_summary_and_its_files(kept: Up) -> None:
    text = Path(kept._output.name).read_text()
    for wanted in ("finished: ", "trained", "evaluation", "restarts"):
        assert wanted in text
    for name in ("up.yaml", "learner.yaml", "actor-1.yaml", "metrics.jsonl", "tensorboard", "checkpoints"):
        assert (kept.root / name).exists()
    assert (kept.root / "learning-curve.png").stat().st_size > 1_000
    assert yaml.safe_load((kept.root / "learner.yaml").read_text())["training"]["seed"] == 3


def test_a_resumed_run_continues_without_repeating_an_incarnation_and_ends_by_itself(kept: Up) -> None:
    with Up(kept.root.parents[1], "--resume", "one", "--steps", "12000") as second:
        wait_until(lambda: second.children() and second.ports, PATIENCE, poll_seconds=LOOK)
        text = second.ends(0)
        second.left_nothing()
    for wanted in ("finished: ", "trained", "evaluation", "restarts", "what to try next", "up --resume"):
        assert wanted in text
    incarnations = yaml.safe_load((kept.root / "incarnations.yaml").read_text())
    assert incarnations == {"actor-0": 2, "actor-1": 2}
    resumed = events(kept.root / "logs" / "learner.log", "run_resumed")
    assert [12_000 > event["steps"] >= 6_000 for event in resumed] == [True]
    assert json.loads((kept.root / "summary.json").read_text())["steps"] >= 12_000


def test_a_run_resumed_with_another_network_is_refused_by_name_and_can_still_continue(kept: Up) -> None:
    settings = (kept.root / "up.yaml").read_bytes()
    with Up(kept.root.parents[1], "--resume", "one", "--steps", "12000", "--set", "training.hidden=[7]") as second:
        text = second.ends(2)
    assert re.search(r"another configuration \(training\.hidden was \[.*\], is \[7\]\)", text), text
    assert (kept.root / "up.yaml").read_bytes() == settings


def test_every_killed_process_comes_back_and_kill_9_of_up_itself_ends_them_all(endless: Up) -> None:
    # One fleet for all: a fleet that survived one death must survive the next.
    kill_an_actor(endless)
    kill_the_learner(endless)
    kill_the_scheduler(endless)
    endless.process.kill()
    endless.process.wait(PATIENCE)
    endless.left_nothing()


def kill_an_actor(up: Up) -> None:
    """A replacement has the next incarnation, with its own seeds."""
    first = up.child("actor-0")
    first.kill()
    up.child("actor-0", other_than=first.pid)

    def back() -> bool:
        actor = up.actors().get("actor-0")
        return actor is not None and actor.incarnation == 2 and actor.state == ACTOR_STATE_READY

    wait_until(back, PATIENCE, poll_seconds=LOOK)
    reached = up.trains_past(0).steps
    up.trains_past(reached)
    assert yaml.safe_load((up.root / "incarnations.yaml").read_text())["actor-0"] == 2


def kill_the_learner(up: Up) -> None:
    """Back from its checkpoint; the actors find it again by themselves."""
    wait_until(lambda: any((up.root / "checkpoints").glob("v*")), PATIENCE)
    actors = {name: up.child(name).pid for name in ("actor-0", "actor-1")}
    first = up.child("learner")
    first.kill()
    up.child("learner", other_than=first.pid)
    wait_until(lambda: events(up.root / "logs" / "learner.log", "run_resumed"), PATIENCE, poll_seconds=LOOK)
    resumed = events(up.root / "logs" / "learner.log", "run_resumed")[0]
    assert resumed["steps"] > 0
    up.trains_past(resumed["steps"])
    assert {name: up.child(name).pid for name in actors} == actors


def kill_the_scheduler(up: Up) -> None:
    """Back with its store; the actors and the learner find it again by themselves."""
    actors = {name: up.child(name).pid for name in ("actor-0", "actor-1")}
    first = up.child("scheduler")
    first.kill()
    up.child("scheduler", other_than=first.pid)
    ready = {ACTOR_STATE_READY}
    wait_until(lambda: {actor.state for actor in up.actors().values()} == ready, PATIENCE, poll_seconds=LOOK)
    reached = up.trains_past(0).steps
    up.trains_past(reached + 20_000)
    assert {name: up.child(name).pid for name in actors} == actors


@pytest.mark.parametrize(("number", "mode"), [(signal.SIGINT, ()), (signal.SIGTERM, ("--serial",))])
def test_a_signal_ends_up_gracefully_and_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, mode: tuple[str, ...]
) -> None:
    with Up(tmp_path, *ENDLESS, *mode) as up:
        up.trains_past(0)
        assert set(up.children()) == ({"learner"} if mode else {"scheduler", "learner", "actor-0", "actor-1"})
        up.process.send_signal(number)
        text = up.ends(1)
        up.left_nothing()
    assert f"interrupted by {'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}" in text
    assert "up --resume" in text
    stopped = events(up.root / "logs" / "learner.log", "run_ended")
    assert [event["state"] for event in stopped] == ["stopped"]


def test_a_second_ctrl_c_does_not_wait_for_a_process_that_hangs(endless: Up) -> None:
    endless.child("actor-1").suspend()
    endless.process.send_signal(signal.SIGINT)
    wait_until(lambda: "actor-0" not in endless.children(), PATIENCE, poll_seconds=LOOK)
    endless.process.send_signal(signal.SIGINT)
    endless.ends(1)
    endless.left_nothing()


def test_when_no_actor_can_run_training_continues_in_one_process(tmp_path: Path) -> None:
    with Up(tmp_path, *SHORT, "--set", "actor.slots=-1") as up:
        text = up.ends(0)
    assert "actor-0 refused its configuration" in text
    assert "slots" in text
    assert "no actor can be kept alive; training continues in one process" in text
    assert "finished: " in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--set", "training.num_envs=0"), "training.num_envs"),
        (("--environment", "CartPol-v1"), "environment 'CartPol-v1' cannot be made: "),
    ],
    ids=["setting", "environment"],
)
def test_a_refused_configuration_is_reported_in_one_sentence_and_not_retried(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    with Up(tmp_path, *arguments) as up:
        text = up.ends(2)
    assert "not finished: learner refused its configuration: " in text
    assert sentence in text
    assert re.search(r"^restarts +0 *$", text, re.MULTILINE)


def test_an_operator_who_stops_the_training_ends_up(tmp_path: Path) -> None:
    with Up(tmp_path, *ENDLESS, "--serial") as up:
        up.trains_past(0)
        with grpc.insecure_channel(f"127.0.0.1:{up.port('learner')}") as channel:
            TrainingServiceStub(channel).StopTraining(StopTrainingRequest(run_id="one"), timeout=5)
        text = up.ends(1)
        up.left_nothing()
    assert "stopped: stopped on request" in text


def test_in_a_terminal_the_table_is_live(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "parlmesh.cli", "up", "--free-ports", "--serial", *SHORT]
    process = subprocess.Popen(
        [*command, "--runs-dir", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
    )
    os.close(theirs)
    text = b""
    # Linux ends reading a pseudo-terminal with EIO once the other side is closed.
    with contextlib.suppress(OSError):
        while chunk := os.read(ours, 65536):
            text += chunk
    os.close(ours)
    assert process.wait(PATIENCE) == 0
    shown = text.decode()
    assert shown.count("╭─") > 1
    assert "one process, no actors" in shown
    assert "what to try next" in shown


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    with Up(tmp_path) as up:
        assert "continue it with --resume one or choose another --run-id" in up.ends(1)


def test_a_port_in_use_is_named_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "parlmesh.cli", "up", "--runs-dir", str(tmp_path), "--port-learner", str(port)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 3
    assert f"port {port} (learner) cannot be used: Address already in use" in ended.stderr
    assert list(tmp_path.iterdir()) == []
