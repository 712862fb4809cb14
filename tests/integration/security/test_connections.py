"""Which connections are accepted: authorities, handshakes, no TLS, and servers that do not start."""

from pathlib import Path

import grpc
import grpc.aio
import pytest

from parlmesh.client import ClientConfig, PARLController
from parlmesh.config import ListenConfig
from parlmesh.errors import ConfigError, Unauthenticated
from parlmesh.exit_codes import exit_code
from parlmesh.rpc import open_channel
from parlmesh.rpc.server import FleetServer
from parlmesh.security import Identity, Role, SecurityConfig
from parlmesh.testing import free_port
from tests.integration.security.conftest import LIST, SUBMIT, Material, fleet, refusals, unary


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


async def test_a_controller_says_at_once_that_it_does_not_trust_the_scheduler(material: Material) -> None:
    client = SecurityConfig(ca=material.other_ca, token_file=material.folder / "operator-t.token")
    async with fleet(material.server()) as (address, servicer):
        with pytest.raises(Unauthenticated, match=r"was not issued by the authority in security\.ca") as error:
            # Waiting for it would exceed the test's time limit.
            await PARLController.connect(address, security=client, config=ClientConfig(connect_seconds=3600))
        assert exit_code(error.value) == 4
        assert servicer.callers == []


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
