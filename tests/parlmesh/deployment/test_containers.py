"""The Containerfile and the compose file, as far as they can be judged without starting a container."""

from collections.abc import Callable
from pathlib import Path

import yaml

from parlmesh.deployment.rendered_files import write
from parlmesh.deployment.settings import DeploySettings
from tests.parlmesh.deployment.conftest import Run

ROOT = Path(__file__).parents[3]


def test_hadolint_finds_nothing_in_the_containerfile(tool: Callable[[str], Run]) -> None:
    answer = tool("hadolint")(ROOT / "deploy/Containerfile")
    assert (answer.returncode, answer.stdout) == (0, "")


def test_the_last_stage_has_no_compiler_and_no_installer() -> None:
    stages = (ROOT / "deploy/Containerfile").read_text().split("\nFROM ")
    assert "USER 10001:10001" in stages[-1]
    for word in ("gcc", "build-essential", "python3-venv", "pip"):
        assert word not in stages[-1]


def test_every_folder_of_the_wheel_is_in_the_build(tmp_path: Path) -> None:
    allowed = (ROOT / ".dockerignore").read_text().split()
    copied = [
        line.split()[1:-1] for line in (ROOT / "deploy/Containerfile").read_text().splitlines() if line[:5] == "COPY "
    ]
    names = {name for line in copied for name in line if not name.startswith(("--", "/"))}
    assert {f"!{name}" for name in names} <= set(allowed)
    assert {"actor", "learner", "scheduler", "parlmesh", "presets", "protos"} <= names


def test_compose_accepts_the_project(tool: Callable[[str], Run], tmp_path: Path) -> None:
    tool("podman")  # podman-compose asks podman for its version before it reads anything
    compose = tool("podman-compose")
    write("compose", DeploySettings(), tmp_path, certificates=True, force=False)
    # To read a project, podman-compose only needs podman's version.
    podman = tmp_path / "podman"
    podman.write_text("#!/bin/sh\necho podman version 4.3.1\n")
    podman.chmod(0o755)
    answer = compose("--podman-path", podman, "-f", tmp_path / "compose/compose.yaml", "config")
    assert answer.returncode == 0, answer.stderr
    services = yaml.safe_load(answer.stdout)["services"]
    assert set(services) == {"scheduler", "learner", "relay", "actor-0", "actor-1"}
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        for mount in service["volumes"]:
            source = mount.split(":")[0] if isinstance(mount, str) else mount["source"]
            assert not source.startswith(".") or (tmp_path / "compose" / source).exists(), source
