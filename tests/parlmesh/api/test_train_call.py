"""What `parlmesh.train` refuses before anything is started."""

import asyncio
import queue
import traceback
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import gymnasium
import numpy as np
import pytest

import parlmesh
from parlmesh.api import train_call
from parlmesh.api.run_follower import Progress
from parlmesh.api.train_call import TrainingRun
from parlmesh.errors import AlreadyExists, FailedPrecondition, FleetError, InvalidInput, Unavailable


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"actors": 0}, "actors must be >= 1 and <= 256, got 0"),
        ({"actors": "many"}, "actors must be a whole number"),
        ({"run_id": "../elsewhere"}, "run_id"),
        ({"environment": gymnasium.make("CartPole-v1")}, "environment is a TimeLimit; it must be an id"),
        ({"environment": dict}, "environment is a type; it must be an id"),
        ({"settings": 5}, "settings is 5; it must be a mapping"),
        ({"security": "certs/ca.crt"}, "security is a str; it must be a parlmesh.security.SecurityConfig"),
        ({"plugins": "things.py:plugin"}, "plugins is the text"),
        ({"on_progress": "print"}, "on_progress is 'print'; it must be a function that takes the run"),
        ({"learner": "localhost:1", "actors": 3}, "actors is 3, but the learner at localhost:1 has its own fleet"),
        ({"learner": "localhost:1", "plugins": ["shop"]}, r"plugins is \['shop'\], but the learner at localhost:1"),
        ({"learner": "localhost:1", "serial": True}, "serial is True, but the learner at localhost:1 has its own"),
    ],
)
def test_a_wrong_argument_is_refused_and_nothing_is_started(
    given: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"environment": "CartPole-v1", "runs_dir": tmp_path / "runs", "progress": False}
    with pytest.raises(FleetError, match=sentence):
        parlmesh.train(**arguments | given)
    assert not list(tmp_path.iterdir())


class Told:
    """A follower whose run has made some progress and then ended."""

    def run(self, told: Any) -> None:
        told(TrainingRun("one", None, self, {}).progress)  # type: ignore[arg-type]

    def stop(self) -> None: ...


def test_a_callback_that_waits_for_the_end_of_its_run_is_refused() -> None:
    def waits(run: TrainingRun) -> None:
        run.wait()

    run = TrainingRun("one", None, Told(), {"on_progress": waits})  # type: ignore[arg-type]
    run.start()
    with pytest.raises(FailedPrecondition, match="a callback of run one waits for its end"):
        run.wait(60)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still, and no run starts a process."""
    moment = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
    monkeypatch.setattr(train_call, "datetime", SimpleNamespace(now=lambda: moment))
    monkeypatch.setattr(TrainingRun, "start", lambda run: None)


@pytest.mark.usefixtures("now")
def test_runs_of_the_same_second_have_names_of_their_own(tmp_path: Path) -> None:
    runs = [parlmesh.train("CartPole-v1", runs_dir=tmp_path, wait=False) for _ in range(3)]
    assert [run.run_id for run in runs] == [f"cartpole-v1-20260102-120000{end}" for end in ("", "-2", "-3")]
    assert [run.folder for run in runs] == [tmp_path / run.run_id for run in runs]
    elsewhere = [parlmesh.train("CartPole-v1", learner="localhost:1", wait=False).run_id for _ in range(3)]
    assert len({*elsewhere}) == 3


@pytest.mark.usefixtures("now")
def test_a_run_id_that_is_taken_is_refused(tmp_path: Path) -> None:
    parlmesh.train("CartPole-v1", runs_dir=tmp_path, run_id="mine", wait=False)
    with pytest.raises(AlreadyExists, match="mine exists; choose another run_id"):
        parlmesh.train("CartPole-v1", runs_dir=tmp_path, run_id="mine", wait=False)


class Scripted:
    """A follower that tells what the test says, and obeys."""

    def __init__(self, *states: str) -> None:
        self.commands: list[str] = []
        self.states: queue.Queue[str] = queue.Queue()
        for state in states:
            self.states.put(state)

    def run(self, told: Any) -> None:
        while (state := self.states.get(timeout=60)) not in ("stopped", "broken"):
            told(Progress(state=state))
        if state == "broken":
            raise InvalidInput("it cannot be")
        told(Progress(state=state))

    def command(self, word: str) -> None:
        self.commands.append(word)
        self.states.put({"Pause": "paused", "Resume": "running"}[word])

    def curves(self) -> dict[str, Any]:
        return {"return/evaluation": (np.array([1, 2]), np.array([3.0, 4.0]))}

    def stop(self) -> None:
        self.states.put("stopped")


def _scripted(*states: str) -> tuple[Scripted, TrainingRun]:
    follower = Scripted(*states)
    return follower, TrainingRun("one", Path("runs/one"), follower, {})  # type: ignore[arg-type]


def test_a_run_may_be_paused_while_it_starts_and_twice() -> None:
    follower, run = _scripted("starting", "created", "running")
    run.start()
    run.pause()
    assert run.progress.state == "paused"
    run.pause()
    run.resume()
    run.resume()
    assert run.progress.state == "running"
    assert follower.commands == ["Pause", "Resume"]
    run.stop()
    with pytest.raises(FailedPrecondition, match=r"run one has ended \(stopped\); `parlmesh up --resume runs/one`"):
        run.resume()


def test_the_error_of_a_run_shows_no_frames_of_the_library() -> None:
    _, run = _scripted("broken")
    run.start()
    with pytest.raises(InvalidInput, match="it cannot be") as caught:
        run.wait(60)
    assert len(traceback.extract_tb(caught.value.__traceback__)) == 2


def test_the_frames_of_a_callback_are_shown() -> None:
    def misread(run: TrainingRun) -> None:
        raise InvalidInput("mine")

    run = TrainingRun("one", None, Told(), {"on_progress": misread})  # type: ignore[arg-type]
    run.start()
    with pytest.raises(InvalidInput, match="mine") as caught:
        run.wait(60)
    assert "misread" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_curves_are_plotted_and_a_wrong_name_is_answered_with_the_right_ones() -> None:
    _, run = _scripted()
    figure = run.plot()
    (line,) = figure.axes[0].lines
    assert np.array_equal(line.get_ydata(), [3.0, 4.0])
    assert run.plot("return/evaluation").axes[0].get_ylabel() == "return/evaluation"
    shown: Any = figure
    assert shown._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(KeyError, match=r"the run has no curve 'reward'; it has return/evaluation"):
        run.curves["reward"]


async def test_a_server_that_is_no_learner_is_named() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with pytest.raises(Unavailable, match=rf"^the server at 127\.0\.0\.1:{port} is not a learner"):
            await asyncio.to_thread(parlmesh.train, "CartPole-v1", learner=f"127.0.0.1:{port}", progress=False)
    finally:
        await server.stop(None)


def test_a_learner_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"^no learner answers at nowhere\.invalid:1; is it running, and is this its"):
        parlmesh.train("CartPole-v1", learner="nowhere.invalid:1", progress=False)
