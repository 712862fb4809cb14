"""The front doors as a program of a user's own opens them: a fresh interpreter, real processes."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

import parlmesh
from parlmesh.api.train_call import TrainingRun
from parlmesh.errors import AlreadyExists, FleetError, Unavailable

pytestmark = pytest.mark.e2e

PROGRAM = """
import json
import numpy as np
import parlmesh

@parlmesh.task
def double(x):
    return 2 * x

@parlmesh.task(runs_in="process")
def norm(values, scale=1.0):
    return {"norm": float(np.linalg.norm(values)) * scale, "first": values[:1]}

@parlmesh.task
def broken(x):
    return 1 / x

@parlmesh.task
def total(parts, start=0):
    return sum(parts, start)

with parlmesh.fleet(workers=2) as fleet:
    halves = [fleet.submit(double, np.full(4, part)) for part in (1, 2)]
    flowed = fleet.submit(norm, fleet.submit(total, halves, start=fleet.submit(double, 1)))
    found = {"sum": sum(fleet.map(double, range(1000)))}
    answer = fleet.submit(norm, np.ones(4), scale=2.0).result(60)
    found["norm"], found["first"] = repr(answer["norm"]), answer["first"].tolist()
    try:
        fleet.submit(broken, 0).result(60)
    except Exception as error:
        found["error"], found["where"] = str(error), error.__notes__[0]
    try:
        fleet.submit(total, [fleet.submit(broken, 0)]).result(60)
    except Exception as error:
        found["doomed"] = error.reason
    found["flowed"] = flowed.result(60)["norm"]
print(json.dumps(found))
"""


def test_the_example_of_the_docs_runs_in_a_fresh_interpreter(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    ((program, output),) = re.findall(r"```python\n([^`]*)```\n```text\n([^`]*)```", text)
    (tmp_path / "program.py").write_text(program.replace("parlmesh.fleet()", "parlmesh.fleet(workers=1)"))
    command = [sys.executable, "program.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, output), ended.stderr


def test_a_program_runs_its_own_functions_without_a_guard(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["sum"], found["norm"], found["first"]) == (999_000, "4.0", [1.0])
    assert (found["flowed"], found["doomed"]) == (16.0, "DEPENDENCY_FAILED")
    assert found["error"] == "ZeroDivisionError: division by zero"
    assert "program.py" in found["where"]
    assert "return 1 / x" in found["where"]


async def test_a_run_is_trained_inside_a_running_loop_and_acts(tmp_path: Path) -> None:
    """As in a notebook: the loop is not blocked, callbacks may ask the run for what it has."""
    seen: list[tuple[float | None, int]] = []

    def note(run: TrainingRun) -> None:
        seen.append((run.progress.evaluation_return, len(run.curves)))

    checkpoints: list[int] = []
    settings = {
        "num_envs": 4,
        "trajectory_steps": 32,
        "evaluation_interval_steps": 1_000,
        "checkpoint_interval_versions": 2,
    }
    run = parlmesh.train(
        "CartPole-v1",
        steps=2_000,
        serial=True,
        seed=1,
        settings=settings,
        runs_dir=tmp_path,
        run_id="one",
        wait=False,
        on_evaluation=note,
        on_checkpoint=lambda run: checkpoints.append(run.progress.checkpoint_version),
    )
    await asyncio.to_thread(run.wait, 120)
    assert run.progress.state == "finished"
    assert run.progress.steps >= 2_000
    assert seen
    assert all(value is not None and curves > 0 for value, curves in seen)
    assert run.progress.evaluations >= len(seen)
    assert checkpoints == sorted(set(checkpoints))
    assert checkpoints[0] > 0
    steps, values = run.curves["return/evaluation"]
    assert len(steps) == len(values) > 0
    environment = gymnasium.make("CartPole-v1")
    observation, _ = environment.reset(seed=0)
    policy = run.policy
    assert policy.act(observation) in (0, 1)
    assert policy.act([observation, observation]).shape == (2,)
    saved = policy.save(tmp_path / "best.safetensors")
    assert run.folder is not None
    for again in (parlmesh.load_policy(run.folder), parlmesh.load_policy(saved), parlmesh.load_policy(run)):
        assert again.act(observation) == policy.act(observation)
    command = [sys.executable, "-m", "parlmesh.cli", "evaluate", str(run.folder), "--episodes", "3", "--json"]
    evaluated = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=120, check=False
    )
    assert evaluated.returncode == 0, evaluated.stderr
    told = json.loads(evaluated.stdout)
    assert told["mean_return"] == pytest.approx(sum(told["returns"]) / 3)
    assert len(told["returns"]) == 3
    with pytest.raises(AlreadyExists, match="choose another run_id"):
        parlmesh.train("CartPole-v1", runs_dir=tmp_path, run_id="one")


def test_a_failing_run_or_callback_raises_where_the_run_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FleetError, match="NoSuchWorld"):
        parlmesh.train("NoSuchWorld-v0", steps=100, serial=True, runs_dir=tmp_path)

    monkeypatch.setenv("PARLMESH_ACTOR__KINDS", '["dance"]')
    with pytest.raises(Unavailable, match=r"no actor can be kept alive: .*kinds has 'dance'"):
        parlmesh.train("CartPole-v1", steps=1_000, actors=1, runs_dir=tmp_path)
    monkeypatch.delenv("PARLMESH_ACTOR__KINDS")

    def refuse(run: TrainingRun) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        parlmesh.train("CartPole-v1", steps=1_000_000, serial=True, runs_dir=tmp_path, on_progress=refuse)


def test_a_setting_that_the_learner_refuses_is_said_once(tmp_path: Path) -> None:
    tried = "try:\n    parlmesh.train('CartPole-v1', algorithm='a2c')\nexcept Exception as error:\n    print(error)\n"
    (tmp_path / "program.py").write_text("import parlmesh\n" + tried)
    command = [sys.executable, "program.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "algorithm must be one of ppo" in ended.stdout
    assert "a2c" not in ended.stderr


CORRIDOR = """
import sys
import gymnasium
import numpy as np
import parlmesh

length = int(sys.argv[1])

class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2, start=5)

    def __init__(self, length=length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert action in (5, 6)
        self.place += 1
        return np.ones(1, np.float32), 1.0, self.place >= self.length, False, {}
"""

TRAINED = """
settings = {"num_envs": 2, "trajectory_steps": 16, "evaluation_episodes": 2}
run = parlmesh.train(Corridor, steps=64, actors=1, settings=settings, run_id="mine")
assert run.policy.act([0.0]) in (5, 6)
print(run.progress.evaluation_return, run.progress.environment["id"])
"""


def test_a_class_of_a_script_is_trained_on_a_fleet_and_acts_without_a_guard(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text(CORRIDOR + TRAINED)
    ended = subprocess.run(
        [sys.executable, "walk.py", "3"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "3.0 walk/Corridor\n"), ended.stderr


def test_a_policy_of_a_plug_in_acts_where_it_was_trained_and_where_the_plug_in_is_named(tmp_path: Path) -> None:
    (tmp_path / "hall.py").write_text(CORRIDOR.replace("int(sys.argv[1])", "2"))
    (tmp_path / "program.py").write_text(
        "import parlmesh\n"
        "run = parlmesh.train('hall/Corridor', plugins=['hall.py:Corridor'], steps=64, serial=True, run_id='mine')\n"
        "print(run.policy.act([0.0]) in (5, 6))\n"
    )
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr
    evaluate = [sys.executable, "-m", "parlmesh.cli", "evaluate", "runs/mine", "--episodes", "2"]
    told = subprocess.run(evaluate, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "if a plug-in brings it, name that too" in told.stderr, told.stderr
    told = subprocess.run(
        [*evaluate, "--plugin", "hall.py:Corridor", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert json.loads(told.stdout)["returns"] == [2.0, 2.0], told.stderr


async def test_a_future_of_a_fleet_is_awaited_in_a_loop_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import asyncio, parlmesh\n"
        "@parlmesh.task\n"
        "def double(x):\n"
        "    return 2 * x\n"
        "async def main(fleet):\n"
        "    print(await fleet.submit(double, 4), await asyncio.gather(fleet.submit(double, 1)))\n"
        "with parlmesh.fleet(workers=1) as fleet:\n"
        "    asyncio.run(main(fleet))\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "program.py", cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    told, errors = await asyncio.wait_for(process.communicate(), 120)
    assert told == b"8 [2]\n", errors


def test_an_interrupted_run_says_what_it_leaves(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import os, signal, parlmesh\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def interrupt(run):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "parlmesh.train('CartPole-v1', steps=10_000_000, serial=True, run_id='one', on_evaluation=interrupt)\n"
    )
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode != 0
    assert "KeyboardInterrupt" in ended.stderr
    assert f"`parlmesh up --resume {tmp_path / 'runs' / 'one'}` continues it" in ended.stderr
