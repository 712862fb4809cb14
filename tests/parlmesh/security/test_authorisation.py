import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from parlmesh.config import Config, load
from parlmesh.errors import ConfigError, PermissionDenied, Unauthenticated
from parlmesh.security import ANYONE, Identity, Role, SecurityConfig
from parlmesh.security.authorisation import CredentialGuard, Guard, Metadata, OpenGuard, build_guard
from parlmesh.security.pem_files import write_authority, write_certificate
from parlmesh.security.tokens import TokenTable, write_token
from parlmesh.testing import HandClock

SUBMIT = "/parlmesh.v1.SchedulerService/SubmitTasks"
CONNECT = "/parlmesh.v1.FleetService/Connect"
LIST = "/parlmesh.v1.SchedulerService/ListTasks"


def token_guard(tmp_path: Path) -> tuple[CredentialGuard, dict[Role, str]]:
    tokens = {role: write_token(tmp_path, role.value, role, force=False)[0].read_text().strip() for role in Role}
    return CredentialGuard(TokenTable(tmp_path / "tokens.yaml", HandClock()), None), tokens


def admit(guard: Guard, method: str, metadata: Metadata) -> Identity:
    identity = guard.identify(method, metadata)
    guard.authorise(identity, method)
    return identity


def bearer(token: str) -> tuple[tuple[str, str | bytes], ...]:
    return (("user-agent", "x"), ("authorization", f"Bearer {token}"))


@pytest.mark.parametrize(
    ("role", "method", "allowed"),
    [
        (Role.OPERATOR, SUBMIT, True),
        (Role.OPERATOR, CONNECT, True),
        (Role.ACTOR, CONNECT, True),
        (Role.ACTOR, SUBMIT, False),
        (Role.READER, LIST, True),
        (Role.READER, SUBMIT, False),
        (Role.READER, CONNECT, False),
    ],
)
def test_a_role_may_call_what_its_row_says(tmp_path: Path, role: Role, method: str, allowed: bool) -> None:
    guard, tokens = token_guard(tmp_path)
    if allowed:
        assert admit(guard, method, bearer(tokens[role])) == Identity(role.value, role)
    else:
        with pytest.raises(PermissionDenied) as error:
            admit(guard, method, bearer(tokens[role]))
        assert error.value.reason == "ROLE_NOT_ALLOWED"
        assert error.value.metadata["identity"] == f"{role} {role}"


def test_a_refusal_says_who_what_and_what_it_needs(tmp_path: Path) -> None:
    guard, tokens = token_guard(tmp_path)
    with pytest.raises(PermissionDenied, match=f"actor actor may not call {SUBMIT}; that needs operator"):
        admit(guard, SUBMIT, bearer(tokens[Role.ACTOR]))


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ((), "NO_CREDENTIAL"),
        ((("authorization", ""),), "MALFORMED_CREDENTIAL"),
        ((("authorization", "Bearer"),), "MALFORMED_CREDENTIAL"),
        ((("authorization", "Bearer "),), "MALFORMED_CREDENTIAL"),
        ((("authorization", "Basic dXNlcg=="),), "MALFORMED_CREDENTIAL"),
        ((("authorization", b"Bearer x"),), "MALFORMED_CREDENTIAL"),
        ((("authorization", "Bearer x"), ("authorization", "Bearer y")), "MALFORMED_CREDENTIAL"),
        ((("authorization", "Bearer x"),), "UNKNOWN_TOKEN"),
        ((("authorization", "Bearer a.b.c"),), "UNKNOWN_TOKEN"),
    ],
)
def test_a_caller_without_proof_is_unauthenticated_for_a_stated_reason(
    tmp_path: Path, metadata: Any, reason: str
) -> None:
    guard, _ = token_guard(tmp_path)
    with pytest.raises(Unauthenticated) as error:
        admit(guard, LIST, metadata)
    assert error.value.reason == reason


def test_the_scheme_is_accepted_in_any_case(tmp_path: Path) -> None:
    guard, tokens = token_guard(tmp_path)
    assert admit(guard, LIST, (("authorization", f"bearer {tokens[Role.READER]}"),)).role is Role.READER


def test_a_probe_needs_no_credential_and_gets_no_rights(tmp_path: Path) -> None:
    guard, _ = token_guard(tmp_path)
    assert admit(guard, "/grpc.health.v1.Health/Check", ()).role is Role.READER


class Material:
    """An authority, a server's certificate and a token file."""

    def __init__(self, folder: Path) -> None:
        self.ca, _ = write_authority(folder, name="ca", days=10, force=False)
        self.certificate, self.key = write_certificate(folder, "s", role=None, hosts=["localhost"], days=1, force=False)
        write_token(folder, "a", Role.ACTOR, force=False)
        self.tokens = folder / "tokens.yaml"


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return Material(tmp_path_factory.mktemp("certs"))


def test_no_settings_mean_no_security() -> None:
    guard = build_guard(SecurityConfig(), "127.0.0.1")
    assert isinstance(guard, OpenGuard)
    assert admit(guard, SUBMIT, ()) == ANYONE
    assert ANYONE.role is Role.OPERATOR


@pytest.mark.parametrize(("host", "reachable"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_no_security_where_others_can_reach_it_must_be_asked_for_and_is_warned_of(
    host: str, reachable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    if reachable:
        with pytest.raises(ConfigError, match="security is not set") as error:
            build_guard(SecurityConfig(), host)
        assert error.value.reason == "SECURITY"
    build_guard(SecurityConfig(insecure=True), host)
    assert [record.getMessage() for record in caplog.records] == (["security_is_off"] if reachable else [])


def test_insecure_beside_security_is_a_contradiction(material: Material) -> None:
    with pytest.raises(ValidationError, match="insecure is for servers without security"):
        SecurityConfig(tokens=material.tokens, insecure=True)


def test_tokens_without_tls_are_for_this_machine_only(material: Material) -> None:
    security = SecurityConfig(tokens=material.tokens)
    assert isinstance(build_guard(security, "127.0.0.1"), CredentialGuard)
    with pytest.raises(ConfigError, match=r"tokens without TLS .* \(listen.host is 0.0.0.0\)") as error:
        build_guard(security, "0.0.0.0")
    assert error.value.reason == "SECURITY"


def test_an_authority_without_a_certificate_is_refused(material: Material) -> None:
    with pytest.raises(ConfigError, match=r"security\.ca is set without security\.certificate"):
        build_guard(SecurityConfig(ca=material.ca), "127.0.0.1")
    with pytest.raises(ConfigError, match=r"security\.ca is set without security\.certificate"):
        build_guard(SecurityConfig(ca=material.ca, tokens=material.tokens), "127.0.0.1")


def test_a_certificate_alone_lets_nobody_in_and_is_refused(material: Material) -> None:
    security = SecurityConfig(certificate=material.certificate, key=material.key)
    with pytest.raises(ConfigError, match="says who may call"):
        build_guard(security, "127.0.0.1")


def test_an_expired_certificate_of_the_server_is_refused(material: Material) -> None:
    security = SecurityConfig(ca=material.ca, certificate=material.certificate, key=material.key)
    with pytest.raises(ConfigError, match=r"s\.crt expired at"):
        build_guard(security, "127.0.0.1", now=lambda: 4e9)


@pytest.mark.parametrize("module", ["jwt", "cryptography"])
def test_certificates_without_the_extra_name_what_to_install(
    material: Material, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    security = SecurityConfig(ca=material.ca, certificate=material.certificate, key=material.key)
    with pytest.raises(ConfigError, match=rf"need {module}; install it with: pip install parlmesh\[security\]"):
        build_guard(security, "127.0.0.1")


def test_tokens_need_no_extra(material: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("jwt", "cryptography"):
        monkeypatch.setitem(sys.modules, module, None)
    security = SecurityConfig(tokens=material.tokens, certificate=material.certificate, key=material.key)
    assert isinstance(build_guard(security, "0.0.0.0"), CredentialGuard)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"certificate": "a"}, "certificate is set without key"),
        ({"key": "a"}, "key is set without certificate"),
        ({"token": "a", "token_file": "b"}, "token and token_file are both set; keep one"),
        ({"require_client_certificate": True}, "require_client_certificate needs ca, certificate and key"),
        (
            {"require_client_certificate": True, "ca": "a", "token": "hunter2"},
            "require_client_certificate needs ca, certificate and key",
        ),
    ],
)
def test_settings_that_do_not_belong_together_are_refused(keys: dict[str, Any], sentence: str) -> None:
    class Service(Config):
        security: SecurityConfig = SecurityConfig()

    with pytest.raises(ValidationError):
        SecurityConfig(**keys)
    environment = {f"P__SECURITY__{name.upper()}": str(value) for name, value in keys.items()}
    with pytest.raises(ConfigError) as error:
        load(Service, environment=environment, prefix="P")
    assert error.value.message == f"security: {sentence}"


def test_a_token_on_the_command_line_is_refused_with_the_ways_that_are_right() -> None:
    class Client(Config):
        security: SecurityConfig = SecurityConfig()

    with pytest.raises(ConfigError, match=r"security\.token_file.*PARLMESH_ACTOR__SECURITY__TOKEN"):
        load(Client, overrides=["security.token=hunter2"], prefix="PARLMESH_ACTOR")
