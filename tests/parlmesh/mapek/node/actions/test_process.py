"""Processes that are really ended and started."""

import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from parlmesh.errors import FailedPrecondition, NotFound
from parlmesh.mapek.node.actions.process import RestartProcess
from parlmesh.mapek.node.settings import NodeConfig


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Path]:
    """A program with a name that nothing else on this machine has."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    file = tmp_path / f"sick{uuid.uuid4().hex[:8]}"
    shutil.copy(sleep, file)
    yield file
    for process in running(file.name):
        process.kill()


def started(program: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([program, "600"])


def running(name: str) -> list[psutil.Process]:
    found = psutil.process_iter(["name", "status"])
    return [each for each in found if each.info["name"] == name and each.info["status"] != psutil.STATUS_ZOMBIE]


async def test_a_process_is_ended_and_started_as_its_operator_said(program: Path) -> None:
    with started(program) as sick:
        settings = NodeConfig(processes={program.name: (str(program), "601")})
        done = await RestartProcess().do({"name": program.name}, settings)
    (fresh,) = running(program.name)
    assert fresh.pid != sick.pid
    assert fresh.cmdline()[-1] == "601"
    assert f"{fresh.pid} was started" in done.detail


async def test_without_an_operators_command_a_process_is_only_ended(program: Path) -> None:
    with started(program):
        done = await RestartProcess().do({"name": program.name}, NodeConfig())
    assert done.detail == f"1 processes {program.name} were ended"
    assert running(program.name) == []
    with pytest.raises(NotFound, match="no process"):
        await RestartProcess().do({"name": program.name}, NodeConfig())


@pytest.mark.parametrize("arguments", [("soon",), ()])
async def test_a_process_that_does_not_stay_up_is_a_failure(program: Path, arguments: tuple[str, ...]) -> None:
    settings = NodeConfig(processes={program.name: (str(program), *arguments)})
    with pytest.raises(FailedPrecondition, match="ended immediately with exit code 1"):
        await RestartProcess().do({"name": program.name}, settings)
