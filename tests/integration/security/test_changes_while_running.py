"""Certificates, tokens and revocations that change while a server runs; quotas; and the audit of what was changed."""

import asyncio
import shutil
import ssl
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.security import Role, SecurityConfig
from parlmesh.security.pem_files import read_certificates, write_certificate
from parlmesh.security.quotas import QuotaConfig
from parlmesh.security.signed_assertions import proof_of
from parlmesh.security.tokens import read_rows, write_token
from parlmesh.testing import wait_until_async
from parlmesh.v1 import fleet_service_pb2, fleet_service_pb2_grpc
from tests.integration.security.conftest import LIST, SECONDS, SUBMIT, Material, fleet, unary


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parlmesh.security.file_watch.LOOK_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr("parlmesh.rpc.server.open_streams.LOOK_AGAIN_SECONDS", 0.05)


@pytest.fixture
def own(material: Material, tmp_path: Path) -> Material:
    """The same files in a folder that a test may change."""
    shutil.copytree(material.folder, tmp_path / "certs")
    copied = Material.__new__(Material)
    copied.folder, copied.ca = tmp_path / "certs", tmp_path / "certs" / "ca.crt"
    return copied


async def served_serial(address: str, ca: Path) -> int:
    """The serial number of the certificate that a new connection gets."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=str(ca))
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert()
        return int(shown["serialNumber"], 16)
    finally:
        writer.close()


async def test_a_renewed_server_certificate_is_shown_without_a_restart_and_a_broken_one_is_not(own: Material) -> None:
    async with fleet(own.server()) as (address, _):
        first = await served_serial(address, own.ca)
        write_certificate(own.folder, "server", role=None, hosts=["127.0.0.1"], days=2, force=True)
        renewed = read_certificates(own.folder / "server.crt")[0].serial_number
        assert renewed != first

        async def is_renewed() -> bool:
            return await served_serial(address, own.ca) == renewed

        await wait_until_async(is_renewed, SECONDS)
        (own.folder / "server.key").write_text("no key")
        await asyncio.sleep(0.05)
        assert await served_serial(address, own.ca) == renewed
        async with open_channel(address, own.holder(Role.READER)) as channel:
            await unary(channel, LIST)


async def test_a_renewed_client_certificate_is_used_without_a_new_channel(own: Material) -> None:
    async with fleet(own.server()) as (address, servicer), open_channel(address, own.node(Role.OPERATOR)) as channel:
        await unary(channel, LIST)
        before = servicer.callers[-1].proof
        write_certificate(own.folder, "operator-1", role=Role.OPERATOR, hosts=(), days=2, force=True)
        wanted = proof_of(read_certificates(own.folder / "operator-1.crt")[0])

        async def is_renewed() -> bool:
            await unary(channel, LIST)
            return servicer.callers[-1].proof == wanted

        await wait_until_async(is_renewed, SECONDS)
        assert wanted != before


async def test_a_renewed_token_file_is_used_without_a_new_channel(own: Material) -> None:
    async with fleet(own.server()) as (address, _), open_channel(address, own.holder(Role.READER)) as channel:
        await unary(channel, LIST)
        write_token(own.folder, "reader-t", Role.READER, force=True)

        async def works() -> bool:
            try:
                await unary(channel, LIST)
            except grpc.aio.AioRpcError:
                return False
            return True

        await asyncio.sleep(0.1)
        await wait_until_async(works, SECONDS)


async def test_a_missing_token_file_lets_nobody_in_until_it_is_back(own: Material) -> None:
    async with fleet(own.server()) as (address, _), open_channel(address, own.holder(Role.READER)) as channel:
        await unary(channel, LIST)
        (own.folder / "tokens.yaml").rename(own.folder / "away.yaml")

        async def status() -> str:
            try:
                await unary(channel, LIST)
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return "OK"

        async def is_closed() -> bool:
            return await status() == "UNAUTHENTICATED"

        await wait_until_async(is_closed, SECONDS)
        (own.folder / "away.yaml").rename(own.folder / "tokens.yaml")

        async def is_open() -> bool:
            return await status() == "OK"

        await wait_until_async(is_open, SECONDS)


def fingerprint(own: Material, name: str) -> str:
    return proof_of(read_certificates(own.folder / f"{name}.crt")[0]).partition(" ")[2]


def serial(own: Material, name: str) -> str:
    return proof_of(read_certificates(own.folder / f"{name}.crt")[0]).partition(" ")[0]


@pytest.mark.parametrize("how", [fingerprint, serial])
async def test_a_revoked_certificate_is_refused_and_the_others_are_not(own: Material, how: Any) -> None:
    revoked = own.folder / "revoked.txt"
    revoked.write_text("# nobody yet\n")
    async with (
        fleet(own.server(revoked=revoked)) as (address, _),
        open_channel(address, own.node(Role.OPERATOR)) as thief,
        open_channel(address, own.node(Role.READER)) as honest,
    ):
        await unary(thief, LIST)
        revoked.write_text(f"{how(own, 'operator-1')}  # lost with a laptop\n")

        async def refusal() -> str:
            try:
                await unary(thief, LIST)
            except grpc.aio.AioRpcError as error:
                return error_from_rpc(error).reason
            return ""

        await wait_until_async(refusal, SECONDS)
        assert await refusal() == "REVOKED_CERTIFICATE"
        revoked.unlink()
        await asyncio.sleep(0.1)
        assert await refusal() == "REVOKED_CERTIFICATE", "what was revoked stays revoked"
        await unary(honest, LIST)


async def connected(channel: Any) -> Any:
    """An open Connect stream that has had one answer."""
    stub: Any = fleet_service_pb2_grpc.FleetServiceStub(channel)
    stream = stub.Connect(timeout=60)
    await stream.write(fleet_service_pb2.ConnectRequest())
    await stream.read()
    return stream


async def end_of(stream: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        async with asyncio.timeout(SECONDS):
            await stream.read()
    return error.value


@pytest.mark.parametrize("kind", ["token", "certificate"])
async def test_taking_a_credential_away_ends_its_open_streams_and_no_others(own: Material, kind: str) -> None:
    revoked = own.folder / "revoked.txt"
    revoked.write_text("")
    token, node = own.holder(Role.ACTOR), own.node(Role.ACTOR)
    async with (
        fleet(own.server(revoked=revoked)) as (address, _),
        open_channel(address, token) as by_token,
        open_channel(address, node) as by_certificate,
    ):
        streams = {"token": await connected(by_token), "certificate": await connected(by_certificate)}
        if kind == "token":
            rows = [row for row in read_rows(own.folder / "tokens.yaml") if row.name != "actor-t"]
            lines = [f'- {{name: {row.name}, role: {row.role}, sha256: "{row.sha256}"}}\n' for row in rows]
            (own.folder / "tokens.yaml").write_text("".join(lines))
        else:
            revoked.write_text(fingerprint(own, "actor-1"))
        ended = await end_of(streams.pop(kind))
        assert ended.code() is grpc.StatusCode.UNAUTHENTICATED
        assert error_from_rpc(ended).reason == "REVOKED"
        (other,) = streams.values()
        await other.write(fleet_service_pb2.ConnectRequest())
        assert await other.read() == fleet_service_pb2.ConnectResponse()


async def test_a_stream_beyond_the_quota_is_refused_until_another_ends(own: Material) -> None:
    server = own.server(quotas=QuotaConfig(streams=1))
    async with (
        fleet(server) as (address, _),
        open_channel(address, own.holder(Role.ACTOR)) as channel,
        open_channel(address, own.node(Role.ACTOR)) as another,
    ):
        first = await connected(channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await connected(channel)
        assert error_from_rpc(error.value).reason == "TOO_MANY_STREAMS"
        await connected(another)
        first.cancel()

        async def has_room() -> bool:
            try:
                await connected(channel)
            except grpc.aio.AioRpcError:
                return False
            return True

        await wait_until_async(has_room, SECONDS)


async def test_calls_beyond_the_rate_are_refused_with_a_hint_for_that_caller_only(own: Material) -> None:
    server = own.server(quotas=QuotaConfig(calls_per_second=1.0))
    async with (
        fleet(server) as (address, servicer),
        open_channel(address, own.holder(Role.READER)) as channel,
        open_channel(address, own.holder(Role.OPERATOR)) as another,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await asyncio.gather(*(unary(channel, LIST) for _ in range(30)))
        found: Any = error_from_rpc(error.value)
        assert (found.reason, found.retry_after_seconds) == ("TOO_MANY_CALLS", 1.0)
        assert len(servicer.callers) < 30
        await unary(another, LIST)


async def test_one_reader_s_unread_calls_wait_for_each_other_and_for_nobody_else(own: Material) -> None:
    """A stream call of a unary method opens the call and holds its message back."""
    server = own.server(quotas=QuotaConfig(unread_calls=1))
    async with (
        fleet(server) as (address, servicer),
        open_channel(address, own.holder(Role.READER)) as channel,
        open_channel(address, own.node(Role.READER)) as another,
    ):
        held: Any = channel.stream_unary(LIST)(timeout=60)
        await held._metadata_sent.wait()
        second = asyncio.ensure_future(unary(channel, LIST))
        await unary(another, LIST)
        assert [one.name for one in servicer.callers] == ["reader-1"]
        assert not second.done()
        held.cancel()
        await second


def audit_lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [
        record.__dict__["parlmesh_fields"]
        for record in caplog.records
        if record.name == "parlmesh.audit" and record.getMessage() == event
    ]


async def test_changes_leave_an_audit_line_and_reads_leave_none(
    own: Material, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with (
        fleet(own.server()) as (address, _),
        open_channel(address, own.holder(Role.OPERATOR)) as channel,
        open_channel(address, own.node(Role.ACTOR)) as actor,
    ):
        await unary(channel, LIST)
        await unary(channel, SUBMIT)
        await connected(actor)
    submitted, opened = audit_lines(caplog, "change")
    assert (submitted["method"], str(submitted["identity"]), submitted["code"]) == (SUBMIT, "operator operator-t", "OK")
    assert submitted["peer"].startswith("ipv4:127.0.0.1:")
    assert submitted["request"] == {"bytes": 0}
    assert (str(opened["identity"]), opened["code"]) == ("actor actor-1", "OPEN")


async def test_without_security_nobody_is_audited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with fleet(SecurityConfig()) as (address, _), open_channel(address) as channel:
        await unary(channel, SUBMIT)
    assert audit_lines(caplog, "change") == []
