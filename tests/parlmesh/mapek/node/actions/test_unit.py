"""Units, with the test's own systemctl: few test machines have a usable systemd."""

from pathlib import Path

import pytest

from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.mapek.node.actions.unit import RestartUnit
from parlmesh.mapek.node.settings import NodeConfig

SYSTEMCTL = """#!/bin/sh
echo "$*" >> "{calls}"
case "$1 $*" in
    "restart "*broken*) echo "Job for broken.service failed." >&2; exit 1 ;;
    "is-active "*fallen*) exit 3 ;;
esac
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which calls are recorded."""
    file, program = tmp_path / "calls", tmp_path / "systemctl"
    program.write_text(SYSTEMCTL.format(calls=file))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return file


def _lines(calls: Path) -> list[str]:
    return calls.read_text().splitlines()


async def test_a_unit_is_restarted_and_looked_at(calls: Path) -> None:
    done = await RestartUnit().do({"unit": "web@2.service"}, NodeConfig())
    assert done.detail == "web@2.service was restarted and is active"
    assert _lines(calls) == ["restart web@2.service", "is-active --quiet web@2.service"]


@pytest.mark.parametrize(
    ("unit", "sentence"), [("broken.service", "Job for broken.service failed"), ("fallen.service", "exit code 3")]
)
async def test_a_unit_that_is_not_active_afterwards_is_a_failure(calls: Path, unit: str, sentence: str) -> None:
    with pytest.raises(FailedPrecondition, match=sentence):
        await RestartUnit().do({"unit": unit}, NodeConfig())
    assert _lines(calls)[0] == f"restart {unit}"


async def test_a_machine_without_systemd_says_so(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(calls.parent / "empty"))
    with pytest.raises(FailedPrecondition, match="systemctl cannot be run: No such file"):
        await RestartUnit().do({"unit": "web.service"}, NodeConfig())


@pytest.mark.parametrize("unit", ["a b", "web;reboot", "--force", "", "$(x)", 3])
def test_an_invalid_unit_is_refused(unit: object) -> None:
    with pytest.raises(InvalidInput, match="unit of restart_unit"):
        RestartUnit().target({"unit": unit})
