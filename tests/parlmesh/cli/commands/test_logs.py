import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parlmesh.cli.__main__ import app
from parlmesh.errors import NotFound

NOBODY = ["--scheduler", "127.0.0.1:1"]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "cart" / "logs"
    folder.mkdir(parents=True)
    lines = [
        {"time": "2026-01-01T00:00:01Z", "level": "info", "event": "connected"},
        {"time": "2026-01-01T00:00:02Z", "level": "error", "event": "task_failed", "task_id": "t-1"},
    ]
    (folder / "actor-0.log").write_text("".join(json.dumps(line) + "\n" for line in lines) + "Killed\n")
    (folder / "learner.log").write_text(json.dumps({"time": "2026-01-01T00:00:03Z", "event": "run_ended"}) + "\n")
    return tmp_path / "runs"


def said(runs: Path, *arguments: str) -> list[str]:
    result = CliRunner().invoke(app, ["logs", *arguments, "--runs-dir", str(runs), *NOBODY], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output.splitlines()


def test_an_actor_that_died_still_has_its_log(runs: Path) -> None:
    lines = said(runs, "actor-0")
    assert any("Killed" in line for line in lines)
    assert any("connected" in line for line in lines)


def test_a_run_has_the_lines_of_all_its_processes_and_a_task_those_that_name_it(runs: Path) -> None:
    assert len(said(runs, "cart")) == 4
    (line,) = said(runs, "t-1")
    assert "task_failed task_id=t-1" in line
    assert len(said(runs, "cart", "-n", "2")) == 2


def test_lines_are_typed_as_json(runs: Path) -> None:
    (line,) = said(runs, "t-1", "--json")
    assert json.loads(line) == {
        "process": "actor-0",
        "time": "2026-01-01T00:00:02Z",
        "level": "error",
        "text": "task_failed task_id=t-1",
        "detail": "",
    }


def test_an_unknown_name_is_reported_with_the_known_ones(runs: Path) -> None:
    with pytest.raises(NotFound, match=r"no process, run or task nobody has a log.*; there are actor-0, learner"):
        said(runs, "nobody")
    with pytest.raises(NotFound, match="is not a folder"):
        said(runs / "nowhere", "actor-0")
