"""`parlmesh tune` as a user runs it: real processes, a real fleet, kill -9."""

import json
import os
import signal
import subprocess
import sys

import pytest
import yaml

pytest.importorskip("optuna")

from parlmesh.tuning.config import TuneConfig
from parlmesh.tuning.study import opened_study

pytestmark = pytest.mark.e2e

STUDY = {
    "training": {"num_envs": 4, "trajectory_steps": 16, "evaluation_episodes": 2, "hidden": [8]},
    "search": {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "hidden": {"choices": [[8], [16]]}},
    "trials": 4,
    "steps": 256,
    "rungs": 2,
}


def started(folder, *more):
    command = [sys.executable, "-m", "parlmesh.cli", "tune", str(folder), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def ended(folder, *more):
    process = started(folder, *more)
    output, errors = process.communicate(timeout=100)
    return process.returncode, output, errors


@pytest.fixture
def study(tmp_path):
    file = tmp_path / "study.yaml"

    def write(**changes):
        file.write_text(yaml.safe_dump({**STUDY, **changes}))
        return str(file)

    return write


def test_a_study_finds_settings_and_writes_them_as_a_preset(tmp_path, study):
    code, output, errors = ended(tmp_path / "s", "--config", study(), "--parallel", "1", "--json")
    assert code == 0, errors
    found = json.loads(output)
    assert found["finished"] == 4
    preset = yaml.safe_load((tmp_path / "s" / "best.yaml").read_text())
    assert preset["training"]["hidden"] in ([8], [16])
    shown = subprocess.run(
        [sys.executable, "-m", "parlmesh.cli", "up", "--config", str(tmp_path / "s" / "best.yaml"), "--print-config"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.returncode == 0, shown.stderr
    # A continued trial keeps its settings.
    code, _, errors = ended(tmp_path / "s", "--set", "steps=999")
    assert code != 0
    assert "other settings" in errors


@pytest.mark.slow
def test_with_one_worker_a_study_is_reproducible(tmp_path, study):
    code, output, errors = ended(tmp_path / "s", "--config", study(), "--parallel", "1", "--json")
    assert code == 0, errors
    found = json.loads(output)
    code, again, _ = ended(tmp_path / "t", "--config", study(), "--parallel", "1", "--json")
    assert json.loads(again)["best_settings"] == found["best_settings"]
    assert json.loads(again)["best_value"] == found["best_value"]


def test_a_killed_study_continues_without_losing_a_finished_trial(tmp_path, study):
    folder = tmp_path / "s"
    process = started(folder, "--config", study(trials=60, steps=512), "--parallel", "2")
    seen = 0
    for line in process.stdout:
        seen += "finished" in line
        if seen == 2:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=20)
    process.stdout.close()
    process.stderr.close()
    with opened_study(folder, TuneConfig.model_validate({**STUDY, "trials": 60, "steps": 512})) as left:
        kept = left.counts()["finished"]
        assert kept >= 2
        assert left.orphans >= 1
    code, output, errors = ended(folder, "--set", f"trials={kept + 2}", "--parallel", "1", "--json")
    assert code == 0, errors
    assert json.loads(output)["finished"] == kept + 2


def test_an_interrupted_study_ends_cleanly_and_says_how_far_it_came(tmp_path, study):
    process = started(tmp_path / "s", "--config", study(trials=60, steps=2048), "--parallel", "1")
    for line in process.stdout:
        if "finished" in line:
            break
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "stopped" in rest
    assert (tmp_path / "s" / "best.yaml").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"search": {"ppo.clip": {"low": 0.1, "high": 7}}}, "search.ppo.clip"),
        ({"search": {}}, "search"),
        ({"rungs": 0}, "rungs"),
    ],
)
def test_an_impossible_study_is_refused_in_one_sentence(tmp_path, study, changes, said):
    code, _, errors = ended(tmp_path / "s", "--config", study(**changes))
    assert code == 2
    assert said in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "s").exists()
