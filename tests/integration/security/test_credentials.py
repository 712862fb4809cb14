"""Refusals over real TLS sockets: the status, one audit line, and a servicer that never saw the call."""

import base64
import datetime
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from parlmesh.errors import PermissionDenied, Unauthenticated
from parlmesh.rpc import open_channel
from parlmesh.rpc.server import Service
from parlmesh.security import Identity, Role, SecurityConfig
from parlmesh.security.certificates import Pair, issue, make_authority
from parlmesh.security.pem_files import write_pair
from parlmesh.security.signed_assertions import TYPE, audience
from parlmesh.security.tokens import new_token
from parlmesh.testing import serve
from parlmesh.v1 import fleet_service_pb2, fleet_service_pb2_grpc
from tests.integration.security.conftest import (
    FLEET,
    LIST,
    SCHEDULER,
    SECONDS,
    SECRETS,
    SUBMIT,
    Material,
    fleet,
    refusals,
    refused,
    unary,
)


def signed(pair: Pair, address_host: str, service: str, key: Any = None, **claims: Any) -> tuple[tuple[str, str], ...]:
    now = int(time.time())
    x5c = [base64.b64encode(pair.certificate.public_bytes(Encoding.DER)).decode()]
    body = {"aud": audience(address_host, service), "iat": now, "exp": now + 60, **claims}
    token = jwt.encode(body, key or pair.key, algorithm="ES256", headers={"typ": TYPE, "x5c": x5c})
    return (("authorization", f"Bearer {token}"),)


@pytest.mark.parametrize("proof", ["certificate", "token"])
@pytest.mark.parametrize(("role", "method"), [(Role.OPERATOR, SUBMIT), (Role.READER, LIST), (Role.OPERATOR, LIST)])
async def test_callers_with_a_proven_role_may_do_what_it_allows(
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


async def test_an_old_assertion_is_unauthenticated(material: Material, caplog: pytest.LogCaptureFixture) -> None:
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
async def test_a_role_without_the_right_is_denied(
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


async def test_a_stream_of_a_role_without_the_right_is_denied_before_it_is_read(
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
    monkeypatch.setattr("parlmesh.rpc.server.unproven_bodies._FIRST_MESSAGE_SECONDS", 0.02)
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
