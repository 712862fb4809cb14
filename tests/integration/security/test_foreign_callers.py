"""Probes, reflection, methods that do not exist, and a client that knows only what reflection gives."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from parlmesh.rpc import open_channel
from parlmesh.security import Identity, Role, SecurityConfig
from tests.integration.security.conftest import (
    FLEET,
    LIST,
    SCHEDULER,
    SECONDS,
    SUBMIT,
    Material,
    fleet,
    refusals,
    unary,
)


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


async def test_a_method_that_does_not_exist_is_unimplemented_and_not_a_refusal(
    material: Material, caplog: pytest.LogCaptureFixture
) -> None:
    client = SecurityConfig(ca=material.ca)
    async with fleet(material.server()) as (address, _), open_channel(address, client) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await unary(channel, "/parlmesh.v1.SchedulerService/Nothing")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert refusals(caplog) == []


async def buf_curl(folder: Path, address: str, *arguments: str) -> tuple[int, str]:
    """A foreign client, outside the repository so that it knows only what reflection gives."""
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
