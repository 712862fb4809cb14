"""Labels from certificates and from the operator's file, from an actor's Connect to what users see."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from parlmesh.cli.commands.actors import show_actors
from parlmesh.config import ListenConfig, MetricsConfig
from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.security import Role, SecurityConfig
from parlmesh.security.pem_files import write_authority, write_certificate
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1.fleet_service_pb2_grpc import FleetServiceStub
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from scheduler.build import Scheduler
from scheduler.config import SchedulerConfig, StoreConfig

SECONDS = 60.0


async def connected(channel: Any, node: str, **labels: str) -> Any:
    """A stream whose hello was accepted."""
    stream: Any = FleetServiceStub(channel).Connect(timeout=SECONDS)
    hello = fleet_pb.Hello(node_id=node, actor_id=f"{node}-0", incarnation=1, slots=1, kinds=["noop"], labels=labels)
    await stream.write(fleet_pb.ConnectRequest(hello=hello))
    await stream.read()
    return stream


async def test_attested_labels_are_distinguished_from_claims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ca, _ = write_authority(tmp_path, name="ours", days=10, force=False)
    write_certificate(tmp_path, "server", role=None, hosts=["127.0.0.1"], days=1, force=False)
    write_certificate(
        tmp_path, "n1", role=Role.ACTOR, hosts=(), days=1, force=False, labels={"zone": "eu", "rack": "7"}
    )
    write_certificate(tmp_path, "ada", role=Role.OPERATOR, hosts=(), days=1, force=False, labels={"zone": "moon"})

    def of(name: str) -> SecurityConfig:
        return SecurityConfig(ca=ca, certificate=tmp_path / f"{name}.crt", key=tmp_path / f"{name}.key")

    config = SchedulerConfig(
        listen=ListenConfig(drain_seconds=0.2),
        metrics=MetricsConfig(port=None),
        store=StoreConfig(kind="memory"),
        security=of("server"),
        attested_labels={"n1": {"rack": "9"}, "n2": {"zone": "us"}},
    )
    scheduler, stop = Scheduler(config), asyncio.Event()
    await scheduler.start()
    running = asyncio.ensure_future(scheduler.shell.run(stop))
    address = scheduler.server.address
    async with open_channel(address, of("n1")) as node, open_channel(address, of("ada")) as ada:
        streams = [await connected(node, "n1", zone="mars")]
        # An operator speaks for any node; labels in the operator's own certificate are not that node's.
        streams.append(await connected(ada, "n2"))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await connected(node, "n1", **{"attested/zone": "mars"})
        assert error_from_rpc(error.value).reason == "CLAIMED_LABEL"
        listed = await SchedulerServiceStub(ada).ListActors(pb.ListActorsRequest(), timeout=SECONDS)
        for stream in streams:
            stream.cancel()
    stop.set()
    await running
    await scheduler.stop()
    labels = {actor.node_id: dict(actor.labels) for actor in listed.actors}
    assert labels["n1"] == {"zone": "mars", "attested/zone": "eu", "attested/rack": "9"}
    assert labels["n2"] == {"attested/zone": "us"}
    show_actors(listed.actors, as_json=True)
    assert '"attested/zone": "eu"' in capsys.readouterr().out
