"""Expiring certificates are renewed with the same content; revoked ones are listed in the servers' file."""

import datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from parlmesh.cli.commands.certs import app
from parlmesh.errors import FleetError, InvalidInput, NotFound
from parlmesh.security.certificates import hosts_of, identity_of
from parlmesh.security.pem_files import read_certificates, read_pair
from parlmesh.security.renewal import held_certificates, renew
from parlmesh.security.revocation import read_revoked

NOW = datetime.datetime.now(datetime.UTC)


def certs(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--folder", str(folder)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certs(tmp_path, "ca")
    certs(tmp_path, "server", "learner", "--dns", "learner.example", "--ip", "10.0.0.2", "--role", "operator")
    certs(tmp_path, "node", "node-1", "--label", "zone=eu", "--namespace", "team-a", "--days", "20")
    return tmp_path


def test_a_renewed_certificate_says_the_same_with_another_key(folder: Path) -> None:
    before = {name: read_certificates(folder / f"{name}.crt")[0] for name in ("learner", "node-1")}
    renew(folder, ["learner", "node-1"], days=90, within_days=0, now=NOW)
    for name, old in before.items():
        pair = read_pair(folder / f"{name}.crt", folder / f"{name}.key")
        assert pair.certificate.public_key() != old.public_key()
        assert (identity_of(pair.certificate), hosts_of(pair.certificate)) == (identity_of(old), hosts_of(old))
        assert 89 < (pair.certificate.not_valid_after_utc - NOW).days + 1 <= 91


def test_only_what_ends_soon_is_renewed_unless_it_is_named(folder: Path) -> None:
    result = certs(folder, "renew", "--within", "30")
    assert result.exit_code == 0
    assert "node-1.crt" in result.output
    assert "learner" not in result.output
    assert "PRIVATE" not in result.output


def test_the_list_tells_what_is_over_by_its_exit_code(folder: Path) -> None:
    assert certs(folder, "list").exit_code == 0
    late = certs(folder, "list", "--within", "30")
    assert late.exit_code == 1
    assert [line.split()[:2] for line in late.output.splitlines()] == [
        ["ca", "authority"],
        ["learner", "operator"],
        ["node-1", "actor"],
    ]


def test_a_revoked_certificate_stands_in_the_servers_file_once_and_is_not_renewed(folder: Path) -> None:
    for _ in range(2):
        assert certs(folder, "revoke", "node-1").exit_code == 0
    (node,) = [each for each in held_certificates(folder) if each.name == "node-1"]
    assert node.revoked
    assert read_revoked(folder / "revoked.txt") == {node.fingerprint}
    assert len((folder / "revoked.txt").read_text().splitlines()) == 1
    assert renew(folder, [], days=90, within_days=30, now=NOW) == []


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [(("renew", "nobody"), NotFound), (("revoke", "nobody"), NotFound), (("revoke", "ca"), InvalidInput)],
)
def test_impossible_requests_are_refused_in_a_sentence(
    folder: Path, arguments: tuple[str, ...], kind: type[FleetError]
) -> None:
    before = {file: file.read_bytes() for file in folder.iterdir()}
    assert isinstance(certs(folder, *arguments).exception, kind)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
