"""Over real TLS sockets: who is refused, with which status, one audit line, and a servicer that never saw the call."""

import asyncio
import base64
import datetime
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import REGISTRY

from parlmesh.config import ListenConfig
from parlmesh.errors import ConfigError, PermissionDenied, Unauthenticated
from parlmesh.rpc import FleetServer, Service, caller, error_from_rpc, open_channel
from parlmesh.security import Identity, Role, SecurityConfig
from parlmesh.security.assertions import TYPE, audience
from parlmesh.security.certificate_files import read_pair, write_authority, write_certificate, write_pair
from parlmesh.security.certificates import Pair, issue, make_authority
from parlmesh.security.tokens import new_token, write_token
from parlmesh.testing import free_port, serve
from parlmesh.v1 import fleet_service_pb2, fleet_service_pb2_grpc, scheduler_service_pb2

SECONDS = 10.0
FLEET = "parlmesh.v1.FleetService"
SCHEDULER = "parlmesh.v1.SchedulerService"
SUBMIT = f"/{SCHEDULER}/SubmitTasks"
LIST = f"/{SCHEDULER}/ListTasks"
SECRETS: list[str] = []


class Material:
    """Two authorities and what they signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, _ = write_authority(folder, name="ours", days=10, force=False)
        self.other_ca, _ = write_authority(folder / "other", name="ours", days=10, force=False)
        write_certificate(folder, "server", role=None, hosts=["localhost", "127.0.0.1"], days=1, force=False)
        for role in Role:
            write_certificate(folder, f"{role}-1", role=role, hosts=(), days=1, force=False)
            write_certificate(folder / "other", f"{role}-1", role=role, hosts=(), days=1, force=False)
            file, _ = write_token(folder, f"{role}-t", role, force=False)
            SECRETS.append(file.read_text().strip())

    def server(self, **options: Any) -> SecurityConfig:
        keys: dict[str, Any] = {"certificate": self.folder / "server.crt", "key": self.folder / "server.key"}
        return SecurityConfig(ca=self.ca, **keys, tokens=self.folder / "tokens.yaml", **options)

    def node(self, role: Role, folder: Path | None = None) -> SecurityConfig:
        place = folder or self.folder
        return SecurityConfig(ca=self.ca, certificate=place / f"{role}-1.crt", key=place / f"{role}-1.key")

    def holder(self, role: Role) -> SecurityConfig:
        return SecurityConfig(ca=self.ca, token_file=self.folder / f"{role}-t.token")

    def pair(self, name: str) -> Pair:
        return read_pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return Material(tmp_path_factory.mktemp("certs"))


class Counting:
    """The scheduler's and the fleet's methods, which only remember who called."""

    def __init__(self) -> None:
        self.callers: list[Identity] = []

    async def unary(self, request: bytes, context: Any) -> bytes:
        self.callers.append(caller())
        return b""

    async def Connect(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        self.callers.append(caller())
        async for _ in requests:
            yield fleet_service_pb2.ConnectResponse()

    def services(self) -> list[Service]:
        handlers: dict[str, Any] = {
            method.name: grpc.unary_unary_rpc_method_handler(self.unary)
            for method in scheduler_service_pb2.DESCRIPTOR.services_by_name["SchedulerService"].methods
        }
        return [
            Service(SCHEDULER, lambda server: server.add_registered_method_handlers(SCHEDULER, handlers)),
            Service(FLEET, lambda server: fleet_service_pb2_grpc.add_FleetServiceServicer_to_server(self, server)),  # type: ignore[arg-type]
        ]


@asynccontextmanager
async def fleet(security: SecurityConfig) -> AsyncIterator[tuple[str, Counting]]:
    servicer = Counting()
    async with serve(servicer.services(), security=security) as address:
        yield address, servicer


async def unary(channel: Any, method: str, **options: Any) -> bytes:
    answer: bytes = await channel.unary_unary(method)(b"", timeout=SECONDS, **options)
    return answer


def refusals(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [
        {"event": record.getMessage(), **record.__dict__["parlmesh_fields"]}
        for record in caplog.records
        if record.name == "parlmesh.audit"
    ]


class Refusal:
    """What one refused call left behind: the client's error and the audit line."""

    def __init__(self, error: grpc.aio.AioRpcError, line: dict[str, Any]) -> None:
        self.code = error.code()
        self.error = error_from_rpc(error)
        self.line = line


async def refused(
    caplog: pytest.LogCaptureFixture,
    server: SecurityConfig,
    client: SecurityConfig,
    method: str = LIST,
    **options: Any,
) -> Refusal:
    """One call that must be refused in every respect."""
    before = _all_refused()
    async with fleet(server) as (address, servicer), open_channel(address, client) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await unary(channel, method, **options)
        assert servicer.callers == []
    (line,) = refusals(caplog)
    assert line["event"] == "call_refused"
    assert line["method"] == method
    assert line["peer"].startswith("ipv4:127.0.0.1:")
    after = _all_refused()
    assert {name: value - before.get(name, 0.0) for name, value in after.items() if value != before.get(name)} == {
        line["reason"]: 1.0
    }
    everything = f"{caplog.text}{[record.__dict__ for record in caplog.records]}{error.value}"
    for secret in [*SECRETS, *(str(value).partition(" ")[2] for _, value in options.get("metadata", ()))]:
        assert not secret or secret not in everything
    return Refusal(error.value, line)


def _all_refused() -> dict[str, float]:
    return {
        sample.labels["reason"]: sample.value
        for metric in REGISTRY.collect()
        if metric.name == "parlmesh_rpc_refused"
        for sample in metric.samples
        if sample.name.endswith("_total")
    }


def signed(pair: Pair, address_host: str, service: str, key: Any = None, **claims: Any) -> tuple[tuple[str, str], ...]:
    now = int(time.time())
    x5c = [base64.b64encode(pair.certificate.public_bytes(Encoding.DER)).decode()]
    body = {"aud": audience(address_host, service), "iat": now, "exp": now + 60, **claims}
    token = jwt.encode(body, key or pair.key, algorithm="ES256", headers={"typ": TYPE, "x5c": x5c})
    return (("authorization", f"Bearer {token}"),)


@pytest.mark.parametrize("proof", ["certificate", "token"])
@pytest.mark.parametrize(("role", "method"), [(Role.OPERATOR, SUBMIT), (Role.READER, LIST), (Role.OPERATOR, LIST)])
async def test_who_proves_a_role_may_do_what_it_may(
    material: Material, proof: str, role: Role, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = material.node(role) if proof == "certificate" else material.holder(role)
    async with fleet(material.server()) as (address, servicer), open_channel(address, client) as channel:
        for _ in range(3):
            await unary(channel, method)
    assert servicer.callers == [Identity(f"{role}-1" if proof == "certificate" else f"{role}-t", role)] * 3
    assert refusals(caplog) == []


@pytest.mark.parametrize("proof", ["certificate", "token"])
async def test_an_actor_may_open_its_stream(material: Material, proof: str) -> None:
    client = material.node(Role.ACTOR) if proof == "certificate" else material.holder(Role.ACTOR)
    async with fleet(material.server()) as (address, servicer), open_channel(address, client) as channel:
        stub: Any = fleet_service_pb2_grpc.FleetServiceStub(channel)
        stream = stub.Connect(timeout=SECONDS)
        await stream.write(fleet_service_pb2.ConnectRequest())
        assert await stream.read() == fleet_service_pb2.ConnectResponse()
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
    assert [identity.role for identity in servicer.callers] == [Role.ACTOR]


async def test_no_credential_is_unauthenticated(material: Material, caplog: pytest.LogCaptureFixture) -> None:
    refusal = await refused(caplog, material.server(), SecurityConfig(ca=material.ca))
    assert refusal.code is grpc.StatusCode.UNAUTHENTICATED
    assert isinstance(refusal.error, Unauthenticated)
    assert (refusal.error.reason, refusal.line["reason"]) == ("NO_CREDENTIAL", "no_credential")
    assert refusal.line["identity"] is None


async def test_a_certificate_of_another_authority_is_unauthenticated(
    material: Material, caplog: pytest.LogCaptureFixture
) -> None:
    client = material.node(Role.OPERATOR, material.folder / "other")
    refusal = await refused(caplog, material.server(), client, SUBMIT)
    assert refusal.code is grpc.StatusCode.UNAUTHENTICATED
    assert (refusal.line["reason"], refusal.line["identity"]) == ("untrusted_certificate", None)


async def test_an_expired_certificate_is_unauthenticated(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    authority = make_authority("old", days=100, now=now - datetime.timedelta(days=9))
    ca, _ = write_pair(authority, tmp_path, "ca")
    server = write_pair(issue(authority, "server", hosts=["127.0.0.1"], days=9, now=now), tmp_path, "server")
    past = issue(authority, "ada", role=Role.OPERATOR, days=1, now=now - datetime.timedelta(days=2))
    node = write_pair(past, tmp_path, "ada")
    refusal = await refused(
        caplog,
        SecurityConfig(ca=ca, certificate=server[0], key=server[1]),
        SecurityConfig(ca=ca, certificate=node[0], key=node[1]),
        SUBMIT,
    )
    assert refusal.code is grpc.StatusCode.UNAUTHENTICATED
    assert (refusal.line["reason"], refusal.line["identity"]) == ("expired_certificate", "operator ada")


async def test_an_assertion_signed_with_the_wrong_key_is_unauthenticated(
    material: Material, caplog: pytest.LogCaptureFixture
) -> None:
    operator, actor = material.pair("operator-1"), material.pair("actor-1")
    metadata = signed(operator, "127.0.0.1", SCHEDULER, key=actor.key)
    refusal = await refused(caplog, material.server(), SecurityConfig(ca=material.ca), SUBMIT, metadata=metadata)
    assert refusal.code is grpc.StatusCode.UNAUTHENTICATED
    assert (refusal.line["reason"], refusal.line["identity"]) == ("wrong_signature", "operator operator-1")


@pytest.mark.parametrize(("host", "service"), [("learner.example", SCHEDULER), ("127.0.0.1", FLEET)])
async def test_an_assertion_for_another_server_or_service_is_unauthenticated(
    material: Material, caplog: pytest.LogCaptureFixture, host: str, service: str
) -> None:
    metadata = signed(material.pair("operator-1"), host, service)
    refusal = await refused(caplog, material.server(), SecurityConfig(ca=material.ca), SUBMIT, metadata=metadata)
    assert refusal.code is grpc.StatusCode.UNAUTHENTICATED
    assert (refusal.line["reason"], refusal.line["identity"]) == ("wrong_audience", "operator operator-1")


async def test_an_assertion_of_long_ago_is_unauthenticated(
    material: Material, caplog: pytest.LogCaptureFixture
) -> None:
    now = int(time.time())
    metadata = signed(material.pair("operator-1"), "127.0.0.1", SCHEDULER, iat=now - 600, exp=now - 540)
    refusal = await refused(caplog, material.server(), SecurityConfig(ca=material.ca), SUBMIT, metadata=metadata)
    assert (refusal.code, refusal.line["reason"]) == (grpc.StatusCode.UNAUTHENTICATED, "expired_credential")


async def test_a_wrong_token_is_unauthenticated(material: Material, caplog: pytest.LogCaptureFixture) -> None:
    token = new_token()
    SECRETS.append(token)
    client = SecurityConfig.model_validate({"ca": material.ca, "token": token})
    refusal = await refused(caplog, material.server(), client)
    assert (refusal.code, refusal.line["reason"]) == (grpc.StatusCode.UNAUTHENTICATED, "unknown_token")


@pytest.mark.parametrize("proof", ["certificate", "token"])
@pytest.mark.parametrize(("role", "method"), [(Role.ACTOR, SUBMIT), (Role.READER, SUBMIT), (Role.ACTOR, LIST)])
async def test_a_role_that_may_not_is_denied(
    material: Material, caplog: pytest.LogCaptureFixture, proof: str, role: Role, method: str
) -> None:
    client = material.node(role) if proof == "certificate" else material.holder(role)
    refusal = await refused(caplog, material.server(), client, method)
    assert refusal.code is grpc.StatusCode.PERMISSION_DENIED
    assert isinstance(refusal.error, PermissionDenied)
    name = f"{role}-1" if proof == "certificate" else f"{role}-t"
    assert (refusal.line["reason"], refusal.line["identity"]) == ("role_not_allowed", f"{role} {name}")
    assert refusal.error.message == f"{role} {name} may not call {method}; that needs " + (
        "operator" if method == SUBMIT else "operator or reader"
    )


async def test_a_stream_of_a_role_that_may_not_is_denied_before_it_is_read(
    material: Material, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(material.server()) as (address, servicer):
        async with open_channel(address, material.holder(Role.READER)) as channel:
            stub: Any = fleet_service_pb2_grpc.FleetServiceStub(channel)
            stream = stub.Connect(iter([fleet_service_pb2.ConnectRequest()]), timeout=SECONDS)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stream.read()
        assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert servicer.callers == []
    assert [line["reason"] for line in refusals(caplog)] == ["role_not_allowed"]


async def test_a_stream_that_sends_nothing_is_refused_as_well(
    material: Material, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parlmesh.rpc.gate._FIRST_MESSAGE_SECONDS", 0.02)
    async with (
        fleet(material.server()) as (address, servicer),
        open_channel(address, material.holder(Role.READER)) as channel,
    ):
        stub: Any = fleet_service_pb2_grpc.FleetServiceStub(channel)
        stream = stub.Connect(timeout=SECONDS)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stream.read()
        assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert servicer.callers == []
    assert len(refusals(caplog)) == 1


async def test_a_client_does_not_speak_to_a_server_of_another_authority(
    material: Material, caplog: pytest.LogCaptureFixture
) -> None:
    client = SecurityConfig(ca=material.other_ca, token_file=material.folder / "operator-t.token")
    async with fleet(material.server()) as (address, servicer), open_channel(address, client) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await unary(channel, SUBMIT)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert servicer.callers == []
    assert refusals(caplog) == []


async def test_a_client_without_tls_reaches_nothing(material: Material) -> None:
    async with fleet(material.server()) as (address, servicer), open_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await unary(channel, LIST)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert servicer.callers == []


@pytest.mark.parametrize("with_certificate", [False, True])
async def test_in_handshake_mode_a_connection_needs_a_certificate_and_a_call_a_credential(
    material: Material, with_certificate: bool
) -> None:
    token = material.folder / "operator-t.token"
    client = SecurityConfig(ca=material.ca, token_file=token)
    if with_certificate:
        node = material.node(Role.ACTOR)
        client = SecurityConfig(ca=material.ca, certificate=node.certificate, key=node.key, token_file=token)
    server = material.server(require_client_certificate=True)
    async with fleet(server) as (address, servicer), open_channel(address, client) as channel:
        if with_certificate:
            await unary(channel, SUBMIT)
            assert servicer.callers == [Identity("operator-t", Role.OPERATOR)]
        else:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await unary(channel, SUBMIT)
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            assert servicer.callers == []


async def test_in_handshake_mode_a_certificate_of_another_authority_does_not_connect(material: Material) -> None:
    client = material.node(Role.OPERATOR, material.folder / "other")
    server = material.server(require_client_certificate=True)
    async with fleet(server) as (address, servicer), open_channel(address, client) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await unary(channel, SUBMIT)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert servicer.callers == []


async def test_a_probe_needs_no_credential(material: Material, caplog: pytest.LogCaptureFixture) -> None:
    client = SecurityConfig(ca=material.ca)
    async with fleet(material.server()) as (address, _), open_channel(address, client) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        response = await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        assert response.status == health_pb2.HealthCheckResponse.SERVING
    assert refusals(caplog) == []


@pytest.mark.parametrize(
    ("role", "code"),
    [
        (None, grpc.StatusCode.UNAUTHENTICATED),
        (Role.ACTOR, grpc.StatusCode.PERMISSION_DENIED),
        (Role.READER, None),
        (Role.OPERATOR, None),
    ],
)
async def test_reflection_is_for_readers_and_operators(
    material: Material, role: Role | None, code: grpc.StatusCode | None
) -> None:
    client = SecurityConfig(ca=material.ca) if role is None else material.holder(role)
    async with fleet(material.server()) as (address, _), open_channel(address, client) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stream = stub.ServerReflectionInfo(iter([request]), timeout=SECONDS)
        if code is None:
            names = {one.name for one in (await stream.read()).list_services_response.service}
            assert {SCHEDULER, FLEET} <= names
        else:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stream.read()
            assert error.value.code() is code


async def test_a_method_that_does_not_exist_is_unimplemented_and_no_refusal(
    material: Material, caplog: pytest.LogCaptureFixture
) -> None:
    client = SecurityConfig(ca=material.ca)
    async with fleet(material.server()) as (address, _), open_channel(address, client) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await unary(channel, "/parlmesh.v1.SchedulerService/Nothing")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert refusals(caplog) == []


async def test_on_this_machine_tokens_work_without_tls(material: Material, caplog: pytest.LogCaptureFixture) -> None:
    server = SecurityConfig(tokens=material.folder / "tokens.yaml")
    client = SecurityConfig(token_file=material.folder / "operator-t.token")
    async with fleet(server) as (address, servicer):
        async with open_channel(address, client) as channel:
            await unary(channel, SUBMIT)
        async with open_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await unary(channel, SUBMIT)
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert servicer.callers == [Identity("operator-t", Role.OPERATOR)]
    assert len(refusals(caplog)) == 1


async def test_a_caller_s_own_metadata_is_kept_beside_the_credential(material: Material) -> None:
    seen: list[dict[str, Any]] = []

    async def remember(request: bytes, context: Any) -> bytes:
        seen.append(dict(context.invocation_metadata()))
        return b""

    handlers: dict[str, Any] = {"ListTasks": grpc.unary_unary_rpc_method_handler(remember)}
    service = Service(SCHEDULER, lambda server: server.add_registered_method_handlers(SCHEDULER, handlers))
    async with (
        serve([service], security=material.server()) as address,
        open_channel(address, material.holder(Role.READER)) as channel,
    ):
        await unary(channel, LIST, metadata=(("x-request-id", "r1"),))
        await unary(channel, LIST, metadata=grpc.aio.Metadata(("x-request-id", "r2")))
    assert [one["x-request-id"] for one in seen] == ["r1", "r2"]


async def test_a_server_that_would_be_less_safe_than_it_looks_does_not_start(material: Material) -> None:
    listen = ListenConfig(host="0.0.0.0", port=free_port())
    security = SecurityConfig(tokens=material.folder / "tokens.yaml")
    with pytest.raises(ConfigError, match="tokens without TLS"):
        await FleetServer(listen=listen, security=security, services=[]).start()


@pytest.mark.parametrize("wrong", ["ca", "certificate", "key"])
async def test_a_file_that_cannot_be_used_is_named_at_the_start(material: Material, tmp_path: Path, wrong: str) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("-----BEGIN CERTIFICATE-----\njunk\n-----END CERTIFICATE-----\n")
    good = material.server()
    for file in (junk, tmp_path / "none.pem"):
        security = SecurityConfig.model_validate({**good.model_dump(), wrong: file})
        with pytest.raises(ConfigError, match=file.name) as error:
            await FleetServer(listen=ListenConfig(), security=security, services=[]).start()
        assert error.value.reason == "SECURITY"
        with pytest.raises(ConfigError, match=file.name):
            open_channel("127.0.0.1:1", security)


async def buf_curl(folder: Path, address: str, *arguments: str) -> tuple[int, str]:
    """A foreign client, outside the repository so that it knows only what reflection tells."""
    buf = shutil.which("buf", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if buf is None:
        pytest.skip("buf is not installed")
    command = [buf, "curl", "--protocol", "grpc", "--reflect", *arguments[:-1], f"https://{address}{arguments[-1]}"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, output.decode()


async def test_a_foreign_client_gets_in_with_a_token_and_not_without(material: Material, tmp_path: Path) -> None:
    header = f"authorization: Bearer {(material.folder / 'reader-t.token').read_text().strip()}"
    trust = ("--cacert", str(material.ca))
    async with fleet(material.server()) as (address, servicer):
        code, output = await buf_curl(tmp_path, address, *trust, "--reflect-header", header, "--list-services", "")
        assert (code, output.split()) == (
            0,
            ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", FLEET, SCHEDULER],
        )
        code, output = await buf_curl(tmp_path, address, *trust, "--list-services", "")
        assert code != 0
        assert "not authenticated" in output
        both = (*trust, "--reflect-header", header, "-H", header)
        code, output = await buf_curl(tmp_path, address, *both, "-d", "{}", LIST)
        assert (code, output.strip()) == (0, "{}")
        code, output = await buf_curl(tmp_path, address, *both, "-d", "{}", SUBMIT)
        assert code != 0
        assert "reader reader-t may not call" in output
        assert "google.rpc.ErrorInfo" in output
    assert servicer.callers == [Identity("reader-t", Role.READER)]
