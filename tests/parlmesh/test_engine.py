import os
import subprocess
import sys

import pytest

from parlmesh import engine


def test_the_quicker_path_is_chosen_and_a_choice_made_outside_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(engine.VARIABLE, raising=False)
    engine.choose_engine()
    assert os.environ[engine.VARIABLE] == engine.OLDER_PATH
    monkeypatch.setenv(engine.VARIABLE, "mine")
    engine.choose_engine()
    assert os.environ[engine.VARIABLE] == "mine"


def test_grpc_knows_the_names_of_what_is_switched_off() -> None:
    """It complains on stderr of names that it does not know."""
    program = (
        "import asyncio, parlmesh, grpc.aio\n"
        "async def main():\n"
        "    server = grpc.aio.server()\n"
        "    server.add_insecure_port('127.0.0.1:0')\n"
        "    await server.start()\n"
        "    await server.stop(0)\n"
        "asyncio.run(main())\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != engine.VARIABLE}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stderr == ""
