"""systemd accepts the units, which leave a process few rights."""

from collections.abc import Callable
from pathlib import Path

import pytest

from parlmesh.deployment.settings import DeploySettings
from parlmesh.deployment.systemd import files
from tests.parlmesh.deployment.conftest import Run

# In tenths, as `--threshold` takes it.
MOST_EXPOSED = 20
SERVICES = ("scheduler", "learner", "relay", "actor")


def unit(service: str, folder: Path) -> Path:
    """The rendered unit, with an existing program in place of the installed one."""
    name = f"parlmesh-{service}.service"
    file = folder / name
    text = files(DeploySettings())[name]
    file.write_text(text.replace(f"/opt/parlmesh/bin/parlmesh-{service}", "/bin/true"))
    return file


@pytest.mark.parametrize("service", SERVICES)
def test_systemd_has_nothing_to_say_against_a_unit(service: str, tool: Callable[[str], Run], tmp_path: Path) -> None:
    # Unknown keys leave the exit code at 0.
    answer = tool("systemd-analyze")("verify", "--man=no", unit(service, tmp_path))
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize("service", SERVICES)
def test_a_unit_is_not_exposed(service: str, tool: Callable[[str], Run], tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    answer = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", unit(service, tmp_path))
    assert answer.returncode == 0, answer.stdout[-200:]


def test_the_check_would_find_a_key_that_does_not_exist(tool: Callable[[str], Run], tmp_path: Path) -> None:
    file = unit("actor", tmp_path)
    file.write_text(file.read_text().replace("PrivateTmp=yes", "PrivateTmpp=yes"))
    assert "PrivateTmpp" in tool("systemd-analyze")("verify", "--man=no", file).stderr
