"""The whole command: help without heavy imports, errors as one sentence with their exit code."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from parlmesh.cli.__main__ import main
from parlmesh.testing import free_port


@dataclass(frozen=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


Command: TypeAlias = Callable[..., Ended]


@pytest.fixture
def parlmesh(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs the entry point with a command line, in an empty folder. A process for each would take half a second to
    start."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["parlmesh", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfd.readouterr()
        assert ended.value.code is None or isinstance(ended.value.code, int)
        return Ended(ended.value.code or 0, said.out, said.err)

    return run


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; import parlmesh.cli.__main__;"
        "heavy = {'grpc', 'torch', 'numpy', 'rich.live', 'cryptography', 'gymnasium'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("command", ["up", "status", "top", "doctor", "tasks", "actors", "train", "models", "certs"])
def test_every_command_has_help(command: str, parlmesh: Command) -> None:
    assert command in parlmesh("--help").stdout
    ended = parlmesh(command, "--help")
    assert ended.returncode == 0
    assert "Usage:" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "service"),
    [
        (["top", "--scheduler", "127.0.0.1:1"], "learner"),
        (["train", "pause"], "learner"),
        (["train", "list"], "learner"),
        (["models", "list"], "learner"),
        (["tasks", "list"], "scheduler"),
        (["tasks", "why", "x"], "scheduler"),
        (["tasks", "submit", "echo"], "scheduler"),
        (["actors", "list"], "scheduler"),
        (["actors", "drain", "x"], "scheduler"),
    ],
)
def test_an_address_without_a_server_is_reported_in_one_sentence(
    arguments: list[str], service: str, parlmesh: Command
) -> None:
    address = f"127.0.0.1:{free_port()}"
    ended = parlmesh(*arguments, f"--{service}", address)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr == (
        f"parlmesh: no {service} answers at {address}; start a fleet with `parlmesh up --keep`"
        f" or name another address with --{service} HOST:PORT\n"
    )


def test_a_port_that_speaks_something_else_hints_at_tls(parlmesh: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        hanging_up = threading.Thread(target=hang_up, args=(server,), daemon=True)
        hanging_up.start()
        ended = parlmesh("actors", "list", "--scheduler", address)
    assert ended.returncode == 1
    assert "if it uses TLS, put --ca and --token-file before the command" in ended.stderr


def hang_up(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        connection.sendall(b"SSH-2.0-hello\r\n")
        connection.close()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tasks", "submit", "echo", "--priority", "urgent"], "--priority is urgent; allowed are background, low"),
        (["tasks", "submit", "echo", "--param", "word"], '--param takes KEY=VALUE, got "word"'),
        (["tasks", "submit", "echo", "--parameters", "[1]"], "--parameters must be a JSON object, got list"),
        (["tasks", "submit", "echo", "--parameters", "{"], "--parameters is not valid JSON"),
        (["tasks", "submit", "echo", "--id", "a", "--count", "2"], "--id names one task, --count is 2"),
        (["tasks", "list", "--state", "lost"], "--state is lost; allowed are waiting, queued"),
        (["status", "--learner", "here"], 'address must be host:port, got "here"'),
        (
            ["tasks", "list", "--scheduler", "127.0.0.1:99999"],
            'address is "127.0.0.1:99999"; its port must be 1 to 65535',
        ),
        (["play", "tictactoe", "--simulations", "9"], "--simulations is 9, but there is no model that could search"),
        (["up", "--resume", "nothing"], "no run at runs/nothing or nothing"),
    ],
)
def test_bad_input_is_reported_in_one_sentence(
    arguments: list[str], sentence: str, parlmesh: Command, tmp_path: Path
) -> None:
    ended = parlmesh(*arguments)
    assert ended.returncode == (1 if sentence.startswith("no run") else 2)
    assert ended.stderr.startswith(f"parlmesh: {sentence}")
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_status_with_nobody_at_either_address_says_so_once(parlmesh: Command) -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    ended = parlmesh("status", "--scheduler", addresses[0], "--learner", addresses[1])
    assert ended.returncode == 1
    assert ended.stderr == (
        f"parlmesh: neither a scheduler at {addresses[0]} nor a learner at {addresses[1]} answers; start a fleet with"
        " `parlmesh up --keep` or name other addresses with --scheduler and --learner HOST:PORT\n"
    )


@pytest.mark.parametrize("mode", [(), ("--serial",)])
def test_a_folder_that_cannot_be_written_gives_one_sentence(
    mode: tuple[str, ...], parlmesh: Command, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    ended = parlmesh("up", *mode, "--free-ports", "--runs-dir", str(tmp_path / "file"), "--run-id", "one")
    assert ended.returncode == 1
    assert ended.stderr == f"parlmesh: {tmp_path / 'file' / 'one'}: Not a directory\n"


def test_a_reader_that_stops_reading_gets_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -m parlmesh.cli up --print-config | true; echo ${{PIPESTATUS[0]}}"
    environment = {"PYTHONPATH": str(Path.cwd()), "PATH": "/usr/bin:/bin", "COLUMNS": "120"}
    ended = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment
    )
    assert "Traceback" not in ended.stderr


def test_an_unknown_key_of_up_is_refused_by_name_with_exit_code_2(tmp_path: Path) -> None:
    # Run as a process, for the exit code that a shell sees.
    command = [sys.executable, "-m", "parlmesh.cli", "up", "--set", "trainig.seed=3"]
    environment = {"PYTHONPATH": str(Path.cwd()), "PATH": "", "COLUMNS": "120"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment)
    assert ended.returncode == 2
    assert 'unknown key "trainig" (did you mean "training"?)' in ended.stderr


def test_a_preset_is_found_by_its_name_from_any_folder(parlmesh: Command) -> None:
    ended = parlmesh("up", "--print-config", "--config", "ppo-acrobot")
    assert ended.returncode == 0
    assert "id: Acrobot-v1" in ended.stdout
    unknown = parlmesh("up", "--print-config", "--config", "ppo-acrobat")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith(
        "parlmesh: --config ppo-acrobat is neither a file nor a preset; presets are dqn-cartpole"
    )


def test_the_options_of_up_end_in_its_settings(parlmesh: Command, tmp_path: Path) -> None:
    ended = parlmesh(
        "up",
        "--print-config",
        "--seed",
        "3",
        "--steps",
        "7",
        "--goal",
        "1.5",
        "--actors",
        "5",
        "--free-ports",
    )
    assert ended.returncode == 0
    for line in ("actors: 5", "  seed: 3", "  step_budget: 7", "  goal_return: 1.5", "  scheduler: 0", "  metrics: 0"):
        assert f"{line}\n" in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_doctor_finds_a_machine_that_can_run_a_fleet_well(parlmesh: Command) -> None:
    addresses = ("--scheduler", f"127.0.0.1:{free_port()}", "--learner", f"127.0.0.1:{free_port()}")
    ended = parlmesh("doctor", *addresses)
    assert ended.returncode == 0, ended.stdout
    assert "✗" not in ended.stdout
    assert "torch 2." in ended.stdout


def test_doctor_says_what_to_do_about_a_missing_file_and_ends_with_1(parlmesh: Command, tmp_path: Path) -> None:
    ended = parlmesh("--ca", str(tmp_path / "ca.pem"), "doctor")
    assert ended.returncode == 1
    assert "No such file or directory; make new ones with `parlmesh certs`" in ended.stdout


def test_a_shell_completes_commands() -> None:
    program = Path(sys.executable).with_name("parlmesh")
    asked = {"_PARLMESH_COMPLETE": "complete_bash", "COMP_WORDS": "parlmesh train st", "COMP_CWORD": "2"}
    ended = subprocess.run([program], env=os.environ | asked, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["start", "stop"]
