import datetime
import os
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509 import verification
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.errors import AlreadyExists, ConfigError, InvalidInput, NotFound
from parlmesh.security import Identity, Role
from parlmesh.security.certificates import (
    hosts_of,
    identity_from_uri,
    identity_in,
    identity_of,
    issue,
    make_authority,
    node_uri,
)
from parlmesh.security.pem_files import (
    read_certificates,
    read_pair,
    server_hosts,
    write_authority,
    write_certificate,
    write_pair,
)

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
AUTHORITY = make_authority("test-ca", days=100, now=NOW)

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)


def verify_server(certificate: x509.Certificate, host: str, moment: datetime.datetime = NOW) -> None:
    store = verification.Store([AUTHORITY.certificate])
    builder = verification.PolicyBuilder().store(store).time(moment)
    builder.build_server_verifier(x509.DNSName(host)).verify(certificate, [])


def verify_node(certificate: x509.Certificate, moment: datetime.datetime = NOW) -> None:
    store = verification.Store([AUTHORITY.certificate])
    verification.PolicyBuilder().store(store).time(moment).build_client_verifier().verify(certificate, [])


@given(name=names, role=st.sampled_from(Role))
def test_a_uri_and_an_identity_are_inverse(name: str, role: Role) -> None:
    assert identity_from_uri(node_uri(Identity(name, role))) == Identity(name, role)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "spiffe://parlmesh/actor/",
        "spiffe://parlmesh/king/a",
        "spiffe://other/actor/a",
        "xspiffe://parlmesh/actor/a",
        "spiffe://parlmesh/actor/a/b",
        "spiffe://parlmesh/actor/a\n",
        "spiffe://parlmesh//a",
    ],
)
def test_any_other_uri_names_nobody(uri: str) -> None:
    assert identity_from_uri(uri) is None


def test_a_node_s_certificate_names_it_and_serves_for_nothing_else() -> None:
    pair = issue(AUTHORITY, "node-1", role=Role.ACTOR, days=10, now=NOW)
    assert identity_of(pair.certificate) == Identity("node-1", Role.ACTOR)
    assert hosts_of(pair.certificate) == ()
    verify_node(pair.certificate)
    with pytest.raises(verification.VerificationError):
        verify_server(pair.certificate, "node-1")


NAMED = "spiffe://parlmesh/actor/node-1"


def test_a_node_s_certificate_may_say_more_of_it() -> None:
    labels = {"zone": "eu west", "rack": "7/3"}
    pair = issue(AUTHORITY, "node-1", role=Role.ACTOR, labels=labels, days=1, now=NOW)
    found = identity_of(pair.certificate)
    assert found == Identity("node-1", Role.ACTOR)
    assert dict(found.labels) == labels


@pytest.mark.parametrize(
    "said",
    [
        ["parlmesh://node/node-2?zone=eu"],
        ["parlmesh://node/node-1?zone=eu", "parlmesh://node/node-1?rack=7"],
        ["parlmesh://node/node-1?zone=eu&zone=us"],
        ["parlmesh://node/node-1?zone=%1b%5b2J"],
        ["parlmesh://node/node-1?attested/zone=eu"],
        ["parlmesh://node/node-1?zone"],
        ["parlmesh://node/node-1?" + "&".join(f"l{number:02}=x" for number in range(17))],
        ["https://node-1.example"],
    ],
)
def test_a_certificate_that_says_anything_else_names_nobody(said: list[str]) -> None:
    assert identity_in([NAMED]) == Identity("node-1", Role.ACTOR)
    assert identity_in([NAMED, *said]) is None


@pytest.mark.parametrize(
    "labels", [{"a b": "x"}, {"zone": "\x1b"}, {"zone": "x" * 129}, {f"l{n}": "" for n in range(17)}]
)
def test_labels_that_cannot_be_used_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        issue(AUTHORITY, "node-1", role=Role.ACTOR, labels=labels, days=1, now=NOW)


def test_a_server_s_certificate_stands_for_its_hosts_and_names_no_node() -> None:
    pair = issue(AUTHORITY, "learner", hosts=["Learner.example", "*.fleet.example", "10.0.0.1", "::1"], days=9, now=NOW)
    assert hosts_of(pair.certificate) == ("learner.example", "*.fleet.example", "10.0.0.1", "::1")
    assert identity_of(pair.certificate) is None
    verify_server(pair.certificate, "learner.example")
    with pytest.raises(verification.VerificationError):
        verify_server(pair.certificate, "scheduler.example")
    with pytest.raises(verification.VerificationError):
        verify_node(pair.certificate)


def test_a_process_can_be_server_and_node() -> None:
    pair = issue(AUTHORITY, "learner", role=Role.OPERATOR, hosts=["learner.example"], days=9, now=NOW)
    assert identity_of(pair.certificate) == Identity("learner", Role.OPERATOR)
    verify_server(pair.certificate, "learner.example")
    verify_node(pair.certificate)


def test_a_certificate_is_valid_for_its_days_only() -> None:
    pair = issue(AUTHORITY, "node-1", role=Role.ACTOR, days=10, now=NOW)
    verify_node(pair.certificate, NOW + datetime.timedelta(days=9, hours=23))
    for moment in (NOW + datetime.timedelta(days=11), NOW - datetime.timedelta(hours=1)):
        with pytest.raises(verification.VerificationError):
            verify_node(pair.certificate, moment)


def test_a_node_cannot_sign_for_others() -> None:
    node = issue(AUTHORITY, "node-1", role=Role.ACTOR, days=10, now=NOW)
    forged = issue(node, "boss", role=Role.OPERATOR, days=5, now=NOW)
    store = verification.Store([AUTHORITY.certificate])
    verifier = verification.PolicyBuilder().store(store).time(NOW).build_client_verifier()
    with pytest.raises(verification.VerificationError):
        verifier.verify(forged.certificate, [node.certificate])


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 64, "a\n", "ü"])
def test_a_name_that_cannot_be_used_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="name must be"):
        issue(AUTHORITY, name, role=Role.ACTOR, days=10, now=NOW)


@pytest.mark.parametrize("days", [0, -1, 36501])
def test_days_out_of_range_are_refused(days: int) -> None:
    with pytest.raises(InvalidInput, match=f"days must be >= 1 and <= 36500, got {days}"):
        issue(AUTHORITY, "a", role=Role.ACTOR, days=days, now=NOW)


@pytest.mark.parametrize("host", ["", "a b", "http://a", "a:1", "*.*.a", "-a", "x" * 254])
def test_an_invalid_host_is_refused(host: str) -> None:
    with pytest.raises(InvalidInput, match="neither a DNS name nor an IP address"):
        issue(AUTHORITY, "a", hosts=[host], days=1, now=NOW)


def test_a_certificate_for_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="needs a role or at least one"):
        issue(AUTHORITY, "a", days=1, now=NOW)


def test_a_server_without_names_is_this_machine() -> None:
    assert server_hosts([], []) == ["localhost", "127.0.0.1", "::1"]
    assert server_hosts(["a"], ["10.0.0.1"]) == ["a", "10.0.0.1"]
    with pytest.raises(InvalidInput, match=r'"a\.example" is not an IP address'):
        server_hosts([], ["a.example"])


def test_keys_can_be_read_by_their_owner_alone(tmp_path: Path) -> None:
    for _, key in (
        write_authority(tmp_path, name="ca", days=1, force=False),
        write_certificate(tmp_path, "a", role=Role.ACTOR, hosts=(), days=1, force=False),
        write_certificate(tmp_path, "a", role=Role.ACTOR, hosts=(), days=1, force=True),
    ):
        assert stat.S_IMODE(os.stat(key).st_mode) == 0o600
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_what_is_written_is_read_again_and_understood_by_openssl(tmp_path: Path) -> None:
    ca, _ = write_authority(tmp_path, name="ca", days=1, force=False)
    certificate, key = write_certificate(tmp_path, "s", role=None, hosts=["localhost"], days=1, force=False)
    assert read_pair(certificate, key).certificate == read_certificates(certificate)[0]
    context = ssl.create_default_context(cafile=str(ca))
    context.load_cert_chain(certificate, key)


def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    certificate, key = write_authority(tmp_path, name="ca", days=1, force=False)
    before = certificate.read_bytes(), key.read_bytes()
    with pytest.raises(AlreadyExists, match="exists; --force replaces it"):
        write_authority(tmp_path, name="ca", days=1, force=False)
    certificate.unlink()
    with pytest.raises(AlreadyExists, match=r"ca\.key exists"):
        write_authority(tmp_path, name="ca", days=1, force=False)
    assert not certificate.exists()
    assert key.read_bytes() == before[1]
    write_authority(tmp_path, name="ca", days=1, force=True)
    assert key.read_bytes() != before[1]


def test_a_certificate_needs_an_authority(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no authority; make one with: parlmesh certs ca"):
        write_certificate(tmp_path, "a", role=Role.ACTOR, hosts=(), days=1, force=False)


def test_no_certificate_takes_the_authority_s_files(tmp_path: Path) -> None:
    write_authority(tmp_path, name="ca", days=1, force=False)
    with pytest.raises(InvalidInput, match="taken by the authority"):
        write_certificate(tmp_path, "ca", role=Role.ACTOR, hosts=(), days=1, force=True)


def test_mismatched_files_are_refused_by_name(tmp_path: Path) -> None:
    certificate, key = write_pair(AUTHORITY, tmp_path, "a")
    other = write_pair(make_authority("b", days=1, now=NOW), tmp_path, "b")[1]
    junk = tmp_path / "junk"
    junk.write_text("junk")
    rsa_key = tmp_path / "rsa.key"
    rsa_key.write_bytes(
        rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    for files, sentence in {
        (certificate, other): f"{other} is not the key of {certificate}",
        (certificate, junk): f"{junk} is not an unencrypted PEM private key",
        (certificate, rsa_key): f"{rsa_key} is not an ECDSA P-256 key",
        (junk, key): f"{junk} holds no PEM certificate",
        (tmp_path / "none", key): f"cannot read {tmp_path}/none: No such file or directory",
    }.items():
        with pytest.raises(ConfigError) as error:
            read_pair(*files)
        assert error.value.message == sentence
        assert error.value.reason == "SECURITY"
