"""The programs of docs/orchestration.md and examples/orchestration run as written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/orchestration.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```\n", PAGE, re.S)


def run(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize(("source", "output"), PROGRAMS)
def test_a_program_prints_what_it_says(source: str, output: str, tmp_path: Path) -> None:
    answer = run("-c", source, cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (0, output), answer.stderr


def test_the_example_finds_everything_and_reports(tmp_path: Path) -> None:
    answer = run(str(ROOT / "examples/orchestration/parallel_search.py"), cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("found 12 of 12 in 60 critical steps\none agent alone: 195 steps\n")
    assert "job search: 12 tasks on 8 slots" in answer.stdout


def test_there_are_programs_and_the_commands_exist(tmp_path: Path) -> None:
    assert len(PROGRAMS) == 2
    for command in (("job", "report"), ("job", "compare"), ("orchestration", "compare"), ("orchestration", "variants")):
        answer = run("-m", "parlmesh.cli", *command, "--help", cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
