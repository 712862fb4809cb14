import os
import subprocess
import sys

import pytest

from parlmesh import grpc_engine


def test_the_quicker_path_is_chosen_and_a_choice_made_outside_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(grpc_engine.VARIABLE, raising=False)
    grpc_engine.choose_engine()
    assert os.environ[grpc_engine.VARIABLE] == grpc_engine.OLDER_PATH
    monkeypatch.setenv(grpc_engine.VARIABLE, "mine")
    grpc_engine.choose_engine()
    assert os.environ[grpc_engine.VARIABLE] == "mine"


def test_grpc_says_nothing_of_its_own_accord_unless_told_outside() -> None:
    environment: dict[str, str] = {}
    grpc_engine.choose_engine(environment)
    assert environment[grpc_engine.LINES_VARIABLE] == "NONE"
    environment[grpc_engine.LINES_VARIABLE] = "ERROR"
    grpc_engine.choose_engine(environment)
    assert environment[grpc_engine.LINES_VARIABLE] == "ERROR"


def test_grpc_knows_the_names_of_what_is_switched_off() -> None:
    """It complains on stderr of names that it does not know."""
    program = (
        "from parlmesh.grpc_engine import choose_engine\n"
        "assert choose_engine()\n"
        "import asyncio, grpc.aio\n"
        "assert not choose_engine()\n"
        "async def main():\n"
        "    server = grpc.aio.server()\n"
        "    server.add_insecure_port('127.0.0.1:0')\n"
        "    await server.start()\n"
        "    await server.stop(0)\n"
        "asyncio.run(main())\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != grpc_engine.VARIABLE}
    environment[grpc_engine.LINES_VARIABLE] = "ERROR"
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stderr == ""


FORKED = """
from parlmesh.grpc_engine import choose_engine
assert choose_engine()
import asyncio, os, grpc.aio
async def main():
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    child = os.fork()
    if not child:
        # A handler of gRPC's would have started its threads again here.
        os._exit(len(os.listdir("/proc/self/task")))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    await server.stop(0)
asyncio.run(main())
"""


def test_a_process_that_is_forked_to_start_a_program_runs_no_handler_of_grpc() -> None:
    environment = {name: value for name, value in os.environ.items() if name != grpc_engine.FORK_VARIABLE}
    command = [sys.executable, "-c", FORKED]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "1\n", "one thread, the one that forked"


SETTINGS = """
import asyncio, locale, logging, os, signal, sys, threading
def settings():
    root = logging.getLogger()
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    os.umask(mask := os.umask(0))
    return (dict(os.environ), sys.getswitchinterval(), sys.getrecursionlimit(), root.level, list(root.handlers),
        handlers, mask, locale.setlocale(locale.LC_ALL), type(asyncio.get_event_loop_policy()), sys.excepthook,
        threading.active_count())
import numpy, grpc.aio  # what they do is their affair
before = settings()
import parlmesh, parlmesh.client, parlmesh.client.sync
assert settings() == before, (before, settings())
"""


def test_importing_the_sdk_changes_no_setting_of_the_process() -> None:
    environment = {name: value for name, value in os.environ.items() if name != grpc_engine.VARIABLE}
    subprocess.run([sys.executable, "-c", SETTINGS], env=environment, timeout=60, check=True)


@pytest.mark.parametrize(
    "module", ["scheduler.__main__", "learner.__main__", "actor.__main__", "parlmesh.cli.__main__"]
)
def test_a_binary_chooses_before_it_imports_grpc(module: str) -> None:
    program = (
        "import importlib, os, sys\n"
        "from parlmesh import grpc_engine as engine\n"
        "def choose():\n"
        "    print('grpc' in sys.modules)\n"
        "    sys.exit()\n"
        "engine.choose_engine = choose\n"
        "sys.argv = ['program', 'doctor']\n"
        f"importlib.import_module({module!r}).main(*{'[[]]' if module.startswith('learner') else '[]'})\n"
    )
    if not module.startswith("parlmesh"):
        program = program.replace("'program', 'doctor'", "'program'")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "False\n"
