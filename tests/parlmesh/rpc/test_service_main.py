"""How a service ends, and with which exit code."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from parlmesh.errors import ConfigError, FleetError, NotFound, Unauthenticated
from parlmesh.rpc import run_service
from parlmesh.testing import Process, wait_until

HERE = Path(__file__).parent


def service(*arguments: str) -> Process:
    return Process("serving_process", *arguments, cwd=HERE, environment={"PYTHONPATH": str(HERE.parents[2])})


@pytest.mark.parametrize("how", ["terminate", "interrupt"])
def test_a_signal_stops_the_service_and_it_ends_with_0(how: str) -> None:
    with service("serve") as process:
        process.wait_for("ready")
        getattr(process, how)()
        process.wait_for("stopping")
        process.assert_exits(0)
        assert process.events("server_stopped")


def test_a_second_signal_ends_a_service_that_does_not_stop() -> None:
    with service("stuck") as process:
        process.wait_for("ready")
        process.terminate()
        process.wait_for("stopping")
        process.terminate()
        process.assert_exits(1)
        assert process.lines[-1] == "error: stopped by a second signal before the drain was over"


def test_a_service_that_does_not_stop_says_where_it_stands_when_asked() -> None:
    with service("stuck") as process:
        process.wait_for("ready")
        process.terminate()
        process.wait_for("stopping")
        process.signal(signal.SIGUSR1)
        tasks = wait_until(lambda: [line for line in process.lines if line.startswith("task ")], 60.0)
        assert any("serving_process.py" in line and " main > " in line for line in tasks), "what the service awaits"
        assert any("hread 0x" in line for line in process.lines), "and every thread"
        assert process.running


def test_returning_ends_with_0() -> None:
    async def main(stop: asyncio.Event) -> None:
        assert not stop.is_set()

    assert run_service(main) == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("seed must be >= 0, got -1"), 2),
        (ConfigError("a.key is not the key of a.crt", reason="SECURITY"), 4),
        (Unauthenticated("the token is not known here"), 4),
        (NotFound("no run r1"), 1),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(
    error: FleetError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for raised in (error, ExceptionGroup("of a task group", [error])):

        async def main(stop: asyncio.Event, raised: Exception = raised) -> None:
            raise raised

        assert run_service(main) == code
        assert capsys.readouterr().err == f"error: {error.message}\n"


def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def main(stop: asyncio.Event) -> None:
        await asyncio.to_thread(tmp_path.write_text, "a folder is no file")

    async def grouped(stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(main(stop))

    for each in (main, grouped):
        assert run_service(each) == 1
        assert capsys.readouterr().err == f"error: {tmp_path}: Is a directory\n"


def test_uvloop_is_used_where_it_is_installed() -> None:
    uvloop = pytest.importorskip("uvloop")
    loops = []

    async def main(stop: asyncio.Event) -> None:
        loops.append(asyncio.get_running_loop())

    assert run_service(main) == 0
    assert isinstance(loops[0], uvloop.Loop)


def test_without_uvloop_the_service_runs_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loops = []

    async def main(stop: asyncio.Event) -> None:
        loops.append(type(asyncio.get_running_loop()).__module__)

    assert run_service(main) == 0
    assert loops == ["asyncio.unix_events"]


def test_a_port_in_use_ends_with_3_and_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with service("serve", str(port)) as process:
            process.assert_exits(3)
            assert process.lines[-1] == f"error: cannot listen on 127.0.0.1:{port}: address already in use"


def test_a_defect_ends_with_1_and_its_traceback_in_the_log() -> None:
    with service("defect") as process:
        process.assert_exits(1)
        (event,) = process.events("service_failed")
        assert "ValueError: a defect" in event["exception"]


@pytest.mark.parametrize(("inherited", "mode"), [(0o000, 0o640), (0o022, 0o640), (0o077, 0o600)])
def test_files_that_a_service_writes_are_unreadable_for_others(tmp_path: Path, inherited: int, mode: int) -> None:
    file = tmp_path / "folder" / "file"

    async def main(stop: asyncio.Event) -> None:
        file.parent.mkdir()
        file.write_text("x")

    before = os.umask(inherited)
    try:
        assert run_service(main) == 0
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == mode
    assert file.parent.stat().st_mode & 0o007 == 0
