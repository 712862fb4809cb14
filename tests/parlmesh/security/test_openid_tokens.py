"""Tokens of an issuer, true and forged, against keys from a file and from a real HTTP server."""

import base64
import hashlib
import hmac
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from pydantic import ValidationError

from parlmesh.errors import ConfigError, Unauthenticated
from parlmesh.security import Identity, Role, SecurityConfig
from parlmesh.security.authorisation import build_guard
from parlmesh.security.config import IssuerConfig
from parlmesh.security.openid_tokens import IssuerVerifier, Keys
from parlmesh.security.pem_files import write_authority, write_certificate
from parlmesh.testing import wait_until

NOW = 1_000_000.0
LIST = "/parlmesh.v1.SchedulerService/ListTasks"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
CLAIMS = {"iss": "https://id.example", "aud": ["parlmesh", "x"], "sub": "ada", "exp": NOW + 60, "roles": ["dev", "ops"]}


def keys(**by_id: Any) -> str:
    """A JSON Web Key Set of public keys."""
    made = []
    for kid, key in by_id.items():
        algorithm: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
        made.append({**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid})
    # A symmetric key is skipped.
    made.append({"kty": "oct", "kid": "shared", "k": base64.urlsafe_b64encode(b"secret" * 8).decode()})
    return json.dumps({"keys": made})


def token(key: Any = EC, kid: str = "e", algorithm: str = "ES256", **claims: Any) -> str:
    said = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(said, key, algorithm=algorithm, headers={"kid": kid})


def by_hand(header: dict[str, Any], sign: Callable[[bytes], bytes]) -> str:
    """A token that a library refuses to make."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, CLAIMS)]
    signed = b".".join(parts)
    return b".".join((signed, base64.urlsafe_b64encode(sign(signed)).rstrip(b"="))).decode()


def confused(kid: str, key: Any) -> str:
    """HS256 with the public key as the secret."""
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return by_hand({"alg": "HS256", "kid": kid}, lambda signed: hmac.digest(public, signed, hashlib.sha256))


def config(folder: Path, **more: Any) -> IssuerConfig:
    file = folder / "keys.json"
    file.write_text(keys(e=EC, r=RSA))
    roles = {"ops": Role.OPERATOR, "dev": Role.READER}
    return IssuerConfig(issuer="https://id.example", audience="parlmesh", keys=file, roles=roles, **more)


def verifier(settings: IssuerConfig, now: float = NOW) -> IssuerVerifier:
    return IssuerVerifier(settings, lambda: now, lambda: now)


def test_a_token_of_the_issuer_names_an_identity(tmp_path: Path) -> None:
    found = verifier(config(tmp_path, namespace_claim="team"))
    assert found.identity(token()) == Identity("ada", Role.OPERATOR)
    assert found.identity(token(RSA, "r", "RS256", roles="dev", team="a", aud="parlmesh")) == Identity(
        "ada", Role.READER, "a"
    )


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (by_hand({"alg": "none", "kid": "e"}, lambda _: b""), "MALFORMED_CREDENTIAL"),
        (confused("r", RSA), "MALFORMED_CREDENTIAL"),
        (confused("e", EC), "MALFORMED_CREDENTIAL"),
        (
            by_hand({"alg": "HS256", "kid": "shared"}, lambda m: hmac.digest(b"secret" * 8, m, "sha256")),
            "MALFORMED_CREDENTIAL",
        ),
        (by_hand({"alg": "ES256", "kid": "shared"}, lambda _: b"x" * 64), "UNKNOWN_KEY"),
        (by_hand({"alg": "RS256", "kid": "e"}, lambda _: b"x" * 64), "WRONG_SIGNATURE"),
        (token(OTHER), "WRONG_SIGNATURE"),
        (token(EC, "r"), "WRONG_SIGNATURE"),
        (token(kid="nobody"), "UNKNOWN_KEY"),
        (token(exp=NOW - 31), "EXPIRED_CREDENTIAL"),
        (token(exp=None), "MALFORMED_CREDENTIAL"),
        (token(exp=1e300), "MALFORMED_CREDENTIAL"),
        (token(nbf=NOW + 31), "EXPIRED_CREDENTIAL"),
        (token(iat=NOW + 31), "EXPIRED_CREDENTIAL"),
        (token(aud="elsewhere"), "WRONG_AUDIENCE"),
        (token(aud=None), "WRONG_AUDIENCE"),
        (token(iss="https://evil.example"), "WRONG_ISSUER"),
        (token(sub="../ada"), "MALFORMED_CREDENTIAL"),
        (token(sub=None), "MALFORMED_CREDENTIAL"),
        (token(roles=["guest"]), "NO_ROLE"),
        (token(roles={"ops": True}), "NO_ROLE"),
        ("a.b.c", "MALFORMED_CREDENTIAL"),
        ("x" * 20_000 + "..", "MALFORMED_CREDENTIAL"),
    ],
)
def test_tokens_that_prove_nothing_are_refused(tmp_path: Path, forged: str, reason: str) -> None:
    with pytest.raises(Unauthenticated) as error:
        verifier(config(tmp_path)).identity(forged)
    assert error.value.reason == reason


def test_a_clock_may_be_a_little_wrong(tmp_path: Path) -> None:
    found = verifier(config(tmp_path))
    assert found.identity(token(exp=NOW - 29, nbf=NOW - 100, iat=NOW + 29)).name == "ada"


def test_a_key_that_was_taken_from_the_file_signs_nothing_more(tmp_path: Path) -> None:
    settings, now = config(tmp_path), [NOW]
    found = IssuerVerifier(settings, lambda: NOW, lambda: now[0])
    assert found.identity(token()).name == "ada"
    assert settings.keys is not None
    settings.keys.write_text(keys(r=RSA))
    now[0] += 2.0
    with pytest.raises(Unauthenticated, match="no such key"):
        found.identity(token())
    settings.keys.write_text("broken")
    now[0] += 2.0
    assert found.identity(token(RSA, "r", "RS256")).name == "ada"


@pytest.fixture
def served() -> Iterator[tuple[str, dict[str, str]]]:
    """An HTTP server and its answers by path."""
    answers = {"/keys": keys(e=EC)}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path, "").encode()
            self.send_response(302 if self.path == "/away" else 200)
            self.send_header("location", "/keys")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    server.server_close()
    thread.join()


def test_keys_behind_an_address_are_asked_for_again_when_one_is_missing(
    tmp_path: Path, served: tuple[str, dict[str, str]]
) -> None:
    url, answers = served
    settings, now = config(tmp_path).model_copy(update={"keys": None, "keys_url": f"{url}/keys"}), [NOW]
    found = IssuerVerifier(settings, lambda: NOW, lambda: now[0])
    assert found.identity(token()).name == "ada"
    answers["/keys"] = keys(r=RSA)
    now[0] += 11.0

    def new_key_is_known() -> bool:
        try:
            return found.identity(token(RSA, "r", "RS256")).name == "ada"
        except Unauthenticated:
            return False

    wait_until(new_key_is_known, 60.0)
    with pytest.raises(Unauthenticated, match="no such key"):
        found.identity(token())


def test_keys_come_over_https_from_a_host_that_proves_itself_and_from_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, _ = write_authority(tmp_path, name="issuers", days=3, force=False)
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(keys(e=EC).encode())

        def log_message(self, *_: Any) -> None:
            pass

    def serve(name: str) -> HTTPServer:
        certificate, key = write_certificate(tmp_path, name, role=None, hosts=[name], days=1, force=False)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server = HTTPServer(("127.0.0.1", 0), Handler)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def settings(server: HTTPServer) -> IssuerConfig:
        values = {**config(tmp_path).model_dump(), "keys": None}
        return IssuerConfig.model_validate({**values, "keys_url": f"https://127.0.0.1:{server.server_port}/keys"})

    good, other = serve("127.0.0.1"), serve("id.example")
    try:
        with pytest.raises(ConfigError, match=r"cannot read the issuer's keys.*certificate verify failed"):
            verifier(settings(good))
        # As on an operator's machine that trusts its own authority.
        monkeypatch.setenv("SSL_CERT_FILE", str(ca))
        assert verifier(settings(good)).identity(token()).name == "ada"
        assert asked == ["/keys"]
        with pytest.raises(ConfigError, match="certificate verify failed"):
            verifier(settings(other))
        assert asked == ["/keys"]
    finally:
        for server in (good, other):
            server.shutdown()
            server.server_close()


@pytest.mark.parametrize("path", ["/nothing", "/away"])
def test_an_address_without_keys_keeps_a_server_from_starting(
    tmp_path: Path, served: tuple[str, dict[str, str]], path: str
) -> None:
    settings = config(tmp_path).model_copy(update={"keys": None, "keys_url": served[0] + path})
    with pytest.raises(ConfigError, match="cannot read the issuer's keys"):
        verifier(settings)


@pytest.mark.parametrize(
    "wrong",
    [
        {"algorithms": ["none"]},
        {"algorithms": ["HS256"]},
        {"keys_url": "http://id.example/keys", "keys": None},
        {"keys": None},
        {"keys_url": "https://id.example/keys"},
        {"roles": {}},
    ],
)
def test_settings_that_would_be_unsafe_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        IssuerConfig.model_validate({**config(tmp_path).model_dump(), **wrong})


def test_a_guard_takes_tokens_of_the_issuer_until_they_expire(tmp_path: Path) -> None:
    now = [NOW]
    security = SecurityConfig(issuer=config(tmp_path))
    guard = build_guard(security, "127.0.0.1", now=lambda: now[0], monotonic=lambda: now[0])
    identity = guard.identify(LIST, (("authorization", f"Bearer {token()}"),))
    assert identity == Identity("ada", Role.OPERATOR)
    assert guard.still_admits(identity)
    now[0] += 100.0
    assert not guard.still_admits(identity)
    with pytest.raises(Unauthenticated):
        guard.identify(LIST, (("authorization", f"Bearer {token()}"),))
    with pytest.raises(ConfigError, match="without TLS"):
        build_guard(security, "0.0.0.0")


def test_a_damaged_key_set_is_refused_in_a_short_sentence(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [{"kty": "OKP", "crv": "x" * 5000, "x": "AAAA"}]}))
    config = IssuerConfig(issuer="i", audience="a", keys=file, roles={"r": Role.READER})
    with pytest.raises(ConfigError, match="cannot read the issuer's keys") as refused:
        Keys(config, time.monotonic)._read()
    assert len(refused.value.message) < 500
