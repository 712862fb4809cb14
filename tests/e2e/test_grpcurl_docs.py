"""Every recipe of docs/grpcurl.md, in its order, by grpcurl itself where it is installed and by buf everywhere."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parlmesh.cli.__main__ import app
from tests.e2e.conftest import Fleet

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "grpcurl.md").read_text()
RECIPES = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.strip().splitlines()]
SMALL = {"training.num_envs": 4, "training.trajectory_steps": 8, "training.hidden": "[8]"}
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def as_buf(arguments: list[str]) -> list[str]:
    """The same call in buf's words."""
    method, found, rest = "", ["buf", "curl", "--protocol", "grpc", "--http2-prior-knowledge"], iter(arguments)
    positional = []
    for word in rest:
        if word == "-d":
            found += ["--data", next(rest)]
        elif word == "-protoset":
            found += ["--schema", next(rest)]
        elif word == "-v":
            found.append("--verbose")
        elif word != "-plaintext":
            positional.append(word)
    address, what, *named = positional
    if what in ("list", "describe"):
        found.append("--list-services" if what == "list" else "--list-methods")
    else:
        method = f"/{what}"
    assert what != "describe" or named
    return [*found, f"http://{address}{method}"]


def as_is(arguments: list[str]) -> list[str]:
    return ["grpcurl", *arguments]


@pytest.mark.parametrize("spoken", [as_buf, as_is], ids=["buf", "grpcurl"])
def test_every_recipe_works(spoken: Callable[[list[str]], list[str]], fleet: Fleet, tmp_path: Path) -> None:
    program = spoken(["-plaintext", "x:1", "list"])[0]
    if shutil.which(program, path=PATH) is None:
        pytest.skip(f"{program} is not installed here")
    fleet.scheduler()
    fleet.learner(**SMALL, **{"training.goal_return": "null"})
    fleet.actor()
    ports = {"50051": str(fleet.scheduler_port), "50052": str(fleet.learner_port)}
    answers: dict[str, str] = {}
    for recipe in RECIPES:
        here = re.sub(r"localhost:(50051|50052)", lambda found: f"127.0.0.1:{ports[found[1]]}", recipe)
        words = shlex.split(here, comments=True)
        if words[0] == "parlmesh":
            words[-1] = str(tmp_path / words[-1])
            assert CliRunner().invoke(app, words[1:]).exit_code == 0
            continue
        command = [str(tmp_path / word) if word.endswith(".binpb") else word for word in spoken(words[1:])]
        command[0] = str(shutil.which(command[0], path=PATH))
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=tmp_path)
        fails = recipe.endswith("# fails")
        assert (answer.returncode != 0) == fails, f"{recipe}\n{answer.stderr}"
        answers[recipe] = answer.stdout + answer.stderr
    assert len(answers) >= 20
    told = "\n".join(answers.values())
    for expected in ("parlmesh.v1.FleetService", "SERVING", "hello", "TASK_STATE_CANCELLED", "actor-0", "loss/policy"):
        assert expected in told, expected
    (refused,) = [answer for recipe, answer in answers.items() if recipe.endswith("# fails")]
    assert "parlmesh-reason" in refused.lower()
    assert "UNKNOWN_TASK" in refused


def test_the_protoset_names_every_service(tmp_path: Path) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    from parlmesh.deployment.protoset import protoset

    files = FileDescriptorSet.FromString(protoset()).file
    seen: set[str] = set()
    for file in files:
        assert set(file.dependency) <= seen, "a file comes after what it imports"
        seen.add(file.name)
    services = {f"{file.package}.{service.name}" for file in files for service in file.service}
    written = {f"parlmesh.v1.{name}" for name in re.findall(r"^service (\w+)", _contract(), re.MULTILINE)}
    assert services == written | {"grpc.health.v1.Health"}


def _contract() -> str:
    return "\n".join(file.read_text() for file in (ROOT / "protos" / "parlmesh" / "v1").glob("*.proto"))
