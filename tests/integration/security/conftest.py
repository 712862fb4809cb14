"""Two authorities and their certificates, a server that records its callers, and a refused call seen from all sides."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from prometheus_client import REGISTRY

from parlmesh.rpc import caller, error_from_rpc, open_channel
from parlmesh.rpc.server import Service
from parlmesh.security import Identity, Role, SecurityConfig
from parlmesh.security.certificates import Pair
from parlmesh.security.pem_files import read_pair, write_authority, write_certificate
from parlmesh.security.tokens import write_token
from parlmesh.testing import serve
from parlmesh.v1 import fleet_service_pb2, fleet_service_pb2_grpc, scheduler_service_pb2

SECONDS = 60.0
FLEET = "parlmesh.v1.FleetService"
SCHEDULER = "parlmesh.v1.SchedulerService"
SUBMIT = f"/{SCHEDULER}/SubmitTasks"
LIST = f"/{SCHEDULER}/ListTasks"
SECRETS: list[str] = []


class Material:
    """Two authorities and their certificates."""

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
    """The scheduler's and the fleet's methods, which only record the caller."""

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
    """The traces of one refused call: the client's error and the audit line."""

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
    """Makes a call that must be refused in every respect."""
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
