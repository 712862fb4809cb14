"""Every program of examples/ runs as its reader would run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(name: str, folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
    assert answer.returncode == 0, answer.stderr[-2000:] + answer.stdout[-2000:]
    return answer.stdout


def test_every_program_is_listed() -> None:
    listed = set(re.findall(r"^\| `([\w/]+\.py)` \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE))
    assert {file.name for file in EXAMPLES.glob("*.py")} == {name for name in listed if "/" not in name}


def test_fan_out_counts_primes(tmp_path: Path) -> None:
    assert run("fan_out.py", tmp_path).strip() == "2262 primes below 20,000"


def test_the_pipeline_ends_in_the_order_of_its_dependencies(tmp_path: Path) -> None:
    first, second = run("pipeline.py", tmp_path).strip().splitlines()
    order = first.split(" -> ")
    assert order[-1] == "report"
    assert set(order) == {"north", "south", "urgent", "report"}
    assert "failed, because" in second


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_training_gives_a_policy_that_acts(tmp_path: Path) -> None:
    (total,) = re.findall(r"one episode with \S+: (\d+)", run("train_and_act.py", tmp_path, str(tmp_path / "runs")))
    assert int(total) > 50


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("federate.py", "round"),
        ("heal_a_mesh.py", "3 nodes were looked at"),
        ("orchestration/parallel_search.py", "critical steps"),
        ("self_play.py", "steps"),
    ],
)
def test_a_program_says_what_it_did(name: str, expected: str, tmp_path: Path) -> None:
    assert expected in run(name, tmp_path)
