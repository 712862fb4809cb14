"""What a newcomer with a bug in a first environment sees: the sentence, the place in the file and the exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]
WORLD = Path(__file__).parent / "worlds" / "faulty.py"
LONGEST_SECONDS = 110

# fault, its message, the line of the file that the message names
TABLE = [
    ("constructor", "ValueError: no such map", 'raise ValueError("no such map")'),
    ("at once", "ValueError: no good after 1 steps", "raise ValueError(f"),
    ("after 60 steps", "no good after 61 steps", "raise ValueError(f"),
    ("reset", "RuntimeError: the door is locked", 'raise RuntimeError("the door is locked")'),
    ("nan", "column reward has values that are not finite", ""),
    ("wrong shape", "an observation has the shape (3,), the observation space says (2,)", ""),
    ("wrong shape at first", "an observation has the shape (3,), the observation space says (2,)", ""),
    ("reward", "Faulty returned the reward array([1.]); it must be one number", ""),
    ("exits", "tried to exit: SystemExit: 3", "raise SystemExit(3)"),
    ("hangs", "rollout_timeout_seconds", ""),
    ("slow", "rollout_timeout_seconds", ""),
]
# Every fault is tried in one process; these also on a fleet, the others there in the long tests.
SERIAL = (
    "constructor",
    "after 60 steps",
    "reset",
    "nan",
    "wrong shape",
    "wrong shape at first",
    "exits",
    "hangs",
    "slow",
)
SHORT = {"at once-fleet", "hangs-fleet"} | {f"{fault}-serial" for fault in SERIAL}
CASES = [
    pytest.param(
        *row,
        mode,
        id=f"{row[0].replace(' ', '-')}-{name}",
        marks=[] if f"{row[0]}-{name}" in SHORT else pytest.mark.slow,
    )
    for row in TABLE
    for name, mode in (("fleet", ("--actors", "1")), ("serial", ("--serial",)))
]


def up(folder: Path, fault: str, *more: str) -> "subprocess.CompletedProcess[str]":
    settings = {
        "training.environment.kwargs.fault": fault,
        "training.num_envs": "4",
        "training.max_failed_rollouts": "6",
        # Long enough for a busy machine, unless the fault is about time.
        "learner.experience.rollout_timeout_seconds": "1.5" if fault in ("hangs", "slow") else "30",
    }
    command = [sys.executable, "-m", "parlmesh.cli", "up", "--plain", "--free-ports", "--runs-dir", str(folder)]
    command += ["--plugin", f"{WORLD}:plugin", "--environment", "Faulty-v0", "--steps", "20000", *more]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LONGEST_SECONDS, cwd=folder, env=environment, check=False
    )


def line_of(text: str) -> int:
    lines = WORLD.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize(("fault", "sentence", "place", "mode"), CASES)
def test_an_environments_bug_is_reported_with_its_place_and_fails_the_command(
    fault: str, sentence: str, place: str, mode: tuple[str, ...], tmp_path: Path
) -> None:
    ended = up(tmp_path, fault, *mode)
    assert ended.returncode != 0, ended.stdout + ended.stderr
    assert ended.returncode == (2 if fault == "constructor" else 1)
    assert sentence in ended.stdout
    if place:
        line = line_of(place)
        assert f'File "{WORLD}", line {line}' in ended.stdout or f"{WORLD}:{line}" in ended.stdout
