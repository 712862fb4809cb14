"""Every method of every service by every kind of credential, over real connections; the table below is the contract."""

import asyncio
import base64
import datetime
import importlib
import json
import pkgutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

import parlmesh.v1
from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.rpc.server import Service
from parlmesh.security import Role, SecurityConfig
from parlmesh.security.certificates import Pair, issue
from parlmesh.security.pem_files import read_pair, write_authority, write_certificate, write_pair
from parlmesh.security.signed_assertions import ALGORITHM, LIFETIME_SECONDS, TYPE, audience, proof_of
from parlmesh.security.tokens import write_token
from parlmesh.testing import serve

SECONDS = 60.0
HOST = "127.0.0.1"

# Who may call a method besides the fleet's operators: r = readers, a = actors, n = within a namespace too, * = anyone.
# A new method needs a row here and one in parlmesh/security/roles.py.
ALLOWED = {
    "grpc.health.v1.Health": {"Check": "*", "List": "*", "Watch": "*"},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": "r"},
    "parlmesh.v1.BlobService": {"GetBlob": "ran", "HoldBlobs": "n", "PutBlob": "an"},
    "parlmesh.v1.ExperienceService": {"UploadTrajectories": "a"},
    "parlmesh.v1.FederationService": {
        "GetFederatedModel": "ra",
        "GetFederation": "r",
        "ListFederations": "r",
        "ListRounds": "r",
        "StartFederation": "",
        "StopFederation": "",
        "SubmitUpdate": "a",
        "SubmitUpdates": "a",
        "WatchFederatedModel": "ra",
    },
    "parlmesh.v1.FleetService": {"Connect": "a"},
    "parlmesh.v1.MetricsService": {"QueryMetrics": "r"},
    "parlmesh.v1.ModelService": {
        "DeleteModel": "",
        "ExportModel": "",
        "GetModel": "r",
        "ListModels": "r",
        "PromoteModel": "",
    },
    "parlmesh.v1.PolicyService": {"GetPolicy": "ra", "WatchPolicy": "ra"},
    "parlmesh.v1.SchedulerService": {
        "CancelTasks": "n",
        "ExplainTask": "rn",
        "GetStatistics": "r",
        "GetTask": "rn",
        "GetTrace": "r",
        "ListActors": "r",
        "ListTasks": "rn",
        "RebalanceTasks": "",
        "SubmitTaskStream": "n",
        "SubmitTasks": "n",
        "UpdateActors": "",
        "WatchTasks": "rn",
    },
    "parlmesh.v1.TrainingService": {
        "CreateTraining": "",
        "GetTraining": "ra",
        "ListTrainings": "ra",
        "PauseTraining": "",
        "ResumeTraining": "",
        "StartTraining": "",
        "StopTraining": "",
        "WatchTraining": "r",
    },
}


class Method(NamedTuple):
    """A method as in its descriptor."""

    service: str
    name: str
    request_streaming: bool
    response_streaming: bool

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.name}"


def methods() -> Iterator[Method]:
    modules = [
        importlib.import_module(f"parlmesh.v1.{module.name}")
        for module in pkgutil.iter_modules(parlmesh.v1.__path__)
        if module.name.endswith("_pb2")
    ]
    for module in [*modules, health_pb2, reflection_pb2]:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield Method(service.full_name, method.name, method.client_streaming, method.server_streaming)


METHODS = sorted(methods())


def test_every_method_of_every_service_has_a_row_and_every_row_a_method() -> None:
    rows = {(service, name) for service, named in ALLOWED.items() for name in named}
    assert rows == {(method.service, method.name) for method in METHODS}


@dataclass(frozen=True)
class Credential:
    """What a caller sends, and what it proves: a role and a namespace, or the reason why it proves nothing."""

    name: str
    metadata: Callable[[str], Any]
    """By service."""
    role: str = ""
    namespace: str = ""
    reason: str = ""

    def expected(self, method: Method) -> str:
        """The reason of the refusal; empty when the call gets in."""
        allowed = ALLOWED[method.service][method.name]
        if allowed == "*":
            return ""
        if self.reason:
            return self.reason
        if self.namespace and "n" not in allowed:
            return "NAMESPACE_NOT_ALLOWED"
        if self.role == Role.OPERATOR or self.role[0] in allowed:
            return ""
        return "ROLE_NOT_ALLOWED"


def assertion(pair: Pair, key: Any = None, *, host: str = HOST, only: str = "", **claims: Any) -> Callable[[str], Any]:
    """Signed now, for the called service unless it is `only` for another."""
    x5c = [base64.b64encode(pair.certificate.public_bytes(Encoding.DER)).decode()]

    def metadata(service: str) -> Any:
        now = int(time.time())
        about = {"aud": audience(host, only or service), "iat": now, "exp": now + LIFETIME_SECONDS, **claims}
        signed = jwt.encode(about, key or pair.key, algorithm=ALGORITHM, headers={"typ": TYPE, "x5c": x5c})
        return (("authorization", f"Bearer {signed}"),)

    return metadata


def unsigned(pair: Pair) -> Callable[[str], Any]:
    """`alg: none`, the oldest trick."""
    x5c = [base64.b64encode(pair.certificate.public_bytes(Encoding.DER)).decode()]

    def encoded(part: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

    def metadata(service: str) -> Any:
        now = int(time.time())
        claims = {"aud": audience(HOST, service), "iat": now, "exp": now + LIFETIME_SECONDS}
        head = {"alg": "none", "typ": TYPE, "x5c": x5c}
        return (("authorization", f"Bearer {encoded(head)}.{encoded(claims)}."),)

    return metadata


def same(*pairs: tuple[str, str]) -> Callable[[str], Any]:
    return lambda service: pairs


def bearer(token: str) -> Callable[[str], Any]:
    return same(("authorization", f"Bearer {token}"))


class Keys:
    """An authority, a server, and all kinds of callers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, _ = write_authority(folder, name="ours", days=10, force=False)
        write_authority(folder / "other", name="ours", days=10, force=False)
        write_certificate(folder, "server", role=None, hosts=[HOST], days=1, force=False)
        self.revoked = folder / "revoked.txt"

    def server(self) -> SecurityConfig:
        return SecurityConfig(
            ca=self.ca,
            certificate=self.folder / "server.crt",
            key=self.folder / "server.key",
            tokens=self.folder / "tokens.yaml",
            revoked=self.revoked,
        )

    def token(self, name: str, role: Role, namespace: str = "") -> str:
        return write_token(self.folder, name, role, force=False, namespace=namespace)[0].read_text().strip()

    def pair(self, name: str, role: Role, namespace: str = "", where: str = ".") -> Pair:
        folder = self.folder / where
        made = write_certificate(folder, name, role=role, hosts=(), days=1, force=False, namespace=namespace)
        return read_pair(*made)

    def credentials(self) -> Iterator[Credential]:
        for role in Role:
            for namespace in ("", "team-a", "team-b"):
                within = f"-{namespace}" if namespace else ""
                yield Credential(
                    f"token {role}{within}", bearer(self.token(f"t-{role}{within}", role, namespace)), role, namespace
                )
                yield Credential(
                    f"certificate {role}{within}",
                    assertion(self.pair(f"c-{role}{within}", role, namespace)),
                    role,
                    namespace,
                )
            foreign = self.pair(f"c-{role}", role, where="other")
            yield Credential(f"foreign {role}", assertion(foreign), reason="UNTRUSTED_CERTIFICATE")
        yield from self.worthless()

    def worthless(self) -> Iterator[Credential]:
        operator, good = self.token("spare", Role.OPERATOR), self.pair("spare", Role.OPERATOR)
        authority = read_pair(self.folder / "ca.crt", self.folder / "ca.key")
        # Expired two minutes ago; the authority existed while it was valid.
        past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1, minutes=2)
        expired = issue(authority, "expired", role=Role.OPERATOR, days=1, now=past)
        write_pair(expired, self.folder, "expired")
        stolen = self.pair("stolen", Role.OPERATOR)
        self.revoked.write_text(proof_of(stolen.certificate).partition(" ")[2])
        now = int(time.time())
        malformed, unknown = "MALFORMED_CREDENTIAL", "UNKNOWN_TOKEN"
        yield Credential("nothing", same(), reason="NO_CREDENTIAL")
        yield Credential("empty", same(("authorization", "")), reason=malformed)
        yield Credential("no scheme", same(("authorization", operator)), reason=malformed)
        yield Credential("basic", same(("authorization", f"Basic {operator}")), reason=malformed)
        yield Credential("twice", same(*[("authorization", f"Bearer {operator}")] * 2), reason=malformed)
        yield Credential("guess", bearer("guess" * 8), reason=unknown)
        yield Credential("half a token", bearer(operator[:-1]), reason=unknown)
        yield Credential("a token in capitals", bearer(operator.swapcase()), reason=unknown)
        yield Credential("the digest itself", bearer("0" * 64), reason=unknown)
        yield Credential("two dots", bearer("a.b.c"), reason=malformed)
        yield Credential("expired certificate", assertion(expired), reason="EXPIRED_CERTIFICATE")
        yield Credential("revoked certificate", assertion(stolen), reason="REVOKED_CERTIFICATE")
        yield Credential("wrong key", assertion(good, expired.key), reason="WRONG_SIGNATURE")
        yield Credential("not signed", unsigned(good), reason=malformed)
        yield Credential("other host", assertion(good, host="elsewhere.example"), reason="WRONG_AUDIENCE")
        yield Credential("other service", assertion(good, only="parlmesh.v1.Nothing"), reason="WRONG_AUDIENCE")
        yield Credential("of yesterday", assertion(good, iat=now - 86400, exp=now - 86340), reason="EXPIRED_CREDENTIAL")
        yield Credential("of tomorrow", assertion(good, iat=now + 86400, exp=now + 86460), reason="EXPIRED_CREDENTIAL")
        yield Credential("for a year", assertion(good, exp=now + 10**7), reason=malformed)
        server = read_pair(self.folder / "server.crt", self.folder / "server.key")
        yield Credential("a server's certificate", assertion(server), reason="UNTRUSTED_CERTIFICATE")


def services() -> list[Service]:
    """Every service of the contract, with methods that do nothing."""

    async def answer(request: Any, context: Any) -> bytes:
        return b""

    async def stream(request: Any, context: Any) -> None:
        await context.write(b"")

    makers: dict[tuple[bool, bool], Any] = {
        (False, False): lambda: grpc.unary_unary_rpc_method_handler(answer),
        (False, True): lambda: grpc.unary_stream_rpc_method_handler(stream),
        (True, False): lambda: grpc.stream_unary_rpc_method_handler(answer),
        (True, True): lambda: grpc.stream_stream_rpc_method_handler(stream),
    }
    found = []
    for name in {method.service for method in METHODS if method.service.startswith("parlmesh.")}:
        handlers = {
            method.name: makers[method.request_streaming, method.response_streaming]()
            for method in METHODS
            if method.service == name
        }

        def register(server: grpc.aio.Server, name: str = name, handlers: dict[str, Any] = handlers) -> None:
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))

        found.append(Service(name, register))
    return found


async def refusal(channel: Any, method: Method, credential: Credential) -> str:
    """The reason why a call was refused; empty when it reached the method."""
    call: Any = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }[method.request_streaming, method.response_streaming](method.path)
    options: dict[str, Any] = {"metadata": credential.metadata(method.service), "timeout": SECONDS}
    try:
        if method.request_streaming:
            # Send nothing before the answer: grpc.aio loses the status of a stream that ends during a write.
            opened = call(**options)
            if method.service.startswith("grpc.reflection") and not credential.expected(method):
                await opened.done_writing()
            await (opened.read() if method.response_streaming else opened)
        elif method.response_streaming:
            opened = call(b"", **options)
            await opened.read()
            opened.cancel()
        else:
            await call(b"", **options)
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error).reason
    return ""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("matrix"))


async def test_every_method_by_every_credential_is_as_the_table_says(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parlmesh.rpc.server.unproven_bodies._FIRST_MESSAGE_SECONDS", 0.01)
    # On a busy machine a body that gives way to others would be refused as slow.
    monkeypatch.setattr("parlmesh.rpc.server.unproven_bodies._PATIENCE_WHEN_BUSY_SECONDS", 60.0)
    monkeypatch.setattr("parlmesh.rpc.server.unproven_bodies._PATIENCE_SECONDS", 60.0)
    credentials = list(keys.credentials())
    assert len(credentials) >= 40
    turns = asyncio.Semaphore(4)
    async with serve(services(), security=keys.server()) as address:
        client = SecurityConfig(ca=keys.ca)
        async with open_channel(address, client) as channel:

            async def row(credential: Credential) -> list[tuple[str, str, str, str]]:
                wrong = []
                async with turns:
                    for method in METHODS:
                        found, wanted = await refusal(channel, method, credential), credential.expected(method)
                        if found != wanted:
                            wrong.append((credential.name, method.path, found, wanted))
                return wrong

            rows = await asyncio.gather(*(row(credential) for credential in credentials))
    assert not [wrong for row in rows for wrong in row]
