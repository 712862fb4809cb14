from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from parlmesh.cli.commands.certs import app
from parlmesh.errors import AlreadyExists, FleetError, InvalidInput, NotFound
from parlmesh.security import Identity, Role
from parlmesh.security.certificates import hosts_of, identity_of
from parlmesh.security.pem_files import read_certificates


def certs(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--folder", str(folder)])


def error_of(folder: Path, *arguments: str) -> FleetError:
    result = certs(folder, *arguments)
    assert isinstance(result.exception, FleetError), result.output
    return result.exception


def test_four_commands_make_a_fleet_s_credentials(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    for arguments in (
        ["ca"],
        ["server", "scheduler", "--dns", "scheduler.example", "--ip", "10.0.0.1"],
        ["server", "learner", "--role", "operator"],
        ["node", "node-1"],
        ["token", "ada", "--role", "operator"],
    ):
        result = certs(folder, *arguments)
        assert result.exit_code == 0, result.output
    assert {file.name for file in folder.iterdir()} == {
        *("ca.crt", "ca.key", "scheduler.crt", "scheduler.key", "learner.crt", "learner.key"),
        *("node-1.crt", "node-1.key", "ada.token", "tokens.yaml"),
    }
    assert hosts_of(read_certificates(folder / "scheduler.crt")[0]) == ("scheduler.example", "10.0.0.1")
    assert identity_of(read_certificates(folder / "node-1.crt")[0]) == Identity("node-1", Role.ACTOR)
    learner = read_certificates(folder / "learner.crt")[0]
    assert (identity_of(learner), hosts_of(learner)[0]) == (Identity("learner", Role.OPERATOR), "localhost")


def test_no_command_prints_a_secret(tmp_path: Path) -> None:
    output = certs(tmp_path, "ca").output + certs(tmp_path, "token", "ada").output
    assert (tmp_path / "ada.token").read_text().strip() not in output
    assert "PRIVATE" not in output
    assert "sha256" in output


@pytest.mark.parametrize("arguments", [("ca",), ("node", "a"), ("server", "b"), ("token", "c")])
def test_a_second_run_replaces_nothing_without_force(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    certs(tmp_path, "ca")
    certs(tmp_path, *arguments)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert isinstance(error_of(tmp_path, *arguments), AlreadyExists)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert certs(tmp_path, *arguments, "--force").exit_code == 0
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} != before


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    assert isinstance(error_of(tmp_path, "node", "a"), NotFound)
    certs(tmp_path, "ca")
    for arguments, sentence in {
        ("node", "a", "--role", "king"): 'role must be one of actor, operator, reader, got "king"',
        ("token", "a", "--role", "king"): 'role must be one of actor, operator, reader, got "king"',
        ("node", "a", "--days", "0"): "days must be >= 1 and <= 36500, got 0",
        ("server", "a", "--ip", "300.0.0.1"): '"300.0.0.1" is not an IP address',
        ("server", "a", "--dns", "a b"): '"a b" is neither a DNS name nor an IP address',
        ("node", "ca"): 'the name "ca" is taken by the authority',
    }.items():
        error = error_of(tmp_path, *arguments)
        assert isinstance(error, InvalidInput)
        assert error.message == sentence
