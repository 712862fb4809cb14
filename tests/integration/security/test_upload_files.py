"""An actor on the learner's host costs no more than any other: a request in a file counts like one that is sent."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from learner.build import build_runs, build_services
from learner.config import LearnerConfig
from parlmesh.rpc import error_from_rpc, error_from_status, open_channel
from parlmesh.rpc.server.time_and_byte_quotas import Account
from parlmesh.security import Role
from parlmesh.testing import serve
from parlmesh.upload_files import KEY, file_of
from parlmesh.v1 import experience_service_pb2 as pb
from parlmesh.wire import field_head

METHOD = "/parlmesh.v1.ExperienceService/UploadTrajectories"
TRAINING = {"num_envs": 4, "trajectory_steps": 8, "hidden": [8]}
WAIT = 60.0
# More of the smallest episodes than any honest trajectory has.
DENSE = field_head(1, 1 << 19) + b"\x42\x00" * (1 << 18)
PLAIN = pb.UploadTrajectoriesRequest(trajectory=pb.Trajectory(run_id="x" * 300_000)).SerializeToString()


def write(prefix, data):
    Path(file_of(prefix, 0)).write_bytes(data)


class Stranger:
    """An actor's stream, and the bytes that it was charged for."""

    def __init__(self, stream, prefix, charged):
        self._stream = stream
        self._prefix = prefix
        self.charged = charged

    async def hand_over(self, data, way, size=None):
        """The reason of the refusal, whether it ends the stream or not."""
        if way == "file":
            write(self._prefix, data)
            named = pb.UploadFile(number=0, size_bytes=len(data) if size is None else size, sequence=1)
            data = pb.UploadTrajectoriesRequest(file=named).SerializeToString()
        await self._stream.write(data)
        try:
            receipt = pb.UploadTrajectoriesResponse.FromString(await self._stream.read())
        except grpc.aio.AioRpcError as error:
            return error_from_rpc(error).reason
        return error_from_status(receipt.status).reason


@pytest.fixture
async def stranger(tmp_path, material, monkeypatch):
    async with uploading(tmp_path, material, monkeypatch) as found:
        yield found


@asynccontextmanager
async def uploading(tmp_path, material, monkeypatch):
    charged, take_bytes = [], Account.take_bytes

    def counted(self, count):
        charged.append(count)
        take_bytes(self, count)

    monkeypatch.setattr(Account, "take_bytes", counted)
    config = LearnerConfig.model_validate({"run_dir": tmp_path, "training": TRAINING})
    scheduler, stopping = open_channel("127.0.0.1:1"), asyncio.Event()
    runs = build_runs(config, scheduler)
    runs.open()
    services = build_services(config, runs, stopping)
    security = material.holder(Role.ACTOR)
    async with serve(services, material.server()) as address, open_channel(address, security) as channel:
        stream: Any = channel.stream_stream(METHOD)(timeout=WAIT)
        yield Stranger(stream, dict(await stream.initial_metadata())[KEY], charged)
        stream.cancel()
        stopping.set()
    await scheduler.close()
    live = runs.get("").live
    assert live is not None
    live.close()
    runs.close()


@pytest.mark.parametrize("way", ["sent", "file"])
async def test_a_request_of_many_small_elements_is_refused_unparsed(stranger, way):
    assert await stranger.hand_over(DENSE, way) == "MESSAGE_TOO_DENSE"


@pytest.mark.parametrize("way", ["sent", "file"])
async def test_the_bytes_of_a_request_are_charged_to_its_sender(stranger, way):
    for _ in range(2):
        assert await stranger.hand_over(PLAIN, way) == "TRAJECTORY_ORIGIN"
    assert stranger.charged.count(len(PLAIN)) == 2


async def test_the_bytes_of_a_file_that_is_shorter_than_named_are_charged_too(stranger):
    assert await stranger.hand_over(PLAIN, "file", len(PLAIN) + 1) == "UPLOAD_FILE"
    assert len(PLAIN) in stranger.charged
