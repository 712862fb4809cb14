"""docs/machines.md as it stands: its commands and its files make a fleet, with this machine in place of several."""

import os
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parlmesh.cli.__main__ import app
from parlmesh.testing import Process, free_port, wait_until

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
QUIET = ("--set", "metrics.port=null")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    ports = {name: str(free_port()) for name in ("50051", "50052")}

    def here(text: str) -> str:
        for name, port in ports.items():
            text = text.replace(name, port)
        return re.sub(r"--dns \w+\.example", "--ip 127.0.0.1", text).replace("0.0.0.0", "127.0.0.1")

    named = dict(zip(("scheduler", "learner", "actor"), blocks("yaml"), strict=True))
    for name, text in named.items():
        (tmp_path / f"{name}.yaml").write_text(re.sub(r"\w+\.example", "127.0.0.1", here(text)))
    for command in next(block for block in blocks("") if "certs ca" in block).strip().splitlines():
        parlmesh(*shlex.split(here(command))[1:])
    exports = re.findall(r"(PARLMESH_\w+)=(\S+)", PAGE)
    assert len(exports) == 4
    for name, value in exports:
        monkeypatch.setenv(name, re.sub(r"\w+\.example", "127.0.0.1", here(value)))
    return tmp_path


def parlmesh(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_the_page_makes_a_fleet_that_trains(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(service: str, event: str) -> Process:
        process = Process(service, "--config", f"{service}.yaml", *QUIET, cwd=folder, environment=environment)
        process.wait_for(event, 60)
        return process

    with start("scheduler", "serving"), start("learner", "serving"), start("actor", "connected"):
        wait_until(lambda: re.search(r"first +running +[1-9]", parlmesh("status")), 60)
        assert "node-1" in parlmesh("actors", "list")
