import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from actor.config import LimitsConfig
from actor.learner.trajectory_uploads import Uploads, upload_stream
from actor.metrics import ActorMetrics
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, ResourceExhausted, Unavailable
from parlmesh.rpc import open_channel
from parlmesh.testing import serve
from parlmesh.testing.fleet import FakeLearner
from parlmesh.v1.experience_service_pb2 import Trajectory, UploadTrajectoriesRequest
from parlmesh.v1.tensor_pb2 import Tensor
from parlmesh.wire import EncodedTrajectory


@dataclass
class Uploading:
    learner: FakeLearner
    uploads: Uploads
    metrics: ActorMetrics

    def trajectory(self, size: int = 10) -> EncodedTrajectory:
        return _encoded(self.uploads.next_sequence(), columns=[Tensor(name="reward", data=bytes(size))])

    def count(self, result: str) -> float:
        value: float = self.metrics.uploads.labels(result)._value.get()
        return value

    @property
    def arrived(self) -> list[int]:
        return [trajectory.sequence for trajectory in self.learner.trajectories]


def _encoded(sequence: int, **fields: Any) -> EncodedTrajectory:
    trajectory = Trajectory(run_id="run-1", actor_id="a", sequence=sequence, **fields)
    return EncodedTrajectory(sequence, UploadTrajectoriesRequest(trajectory=trajectory).SerializeToString())


@asynccontextmanager
async def _uploading(**limits: Any) -> AsyncIterator[Uploading]:
    learner, metrics = FakeLearner(), ActorMetrics(CollectorRegistry())
    options = LimitsConfig(**{"reconnect_seconds": 0.02, "upload_seconds": 10.0} | limits)
    async with serve(learner.services) as address, open_channel(address) as channel:
        uploads = Uploads(upload_stream(channel), limits=options, metrics=metrics, rng=random.Random(0))
        async with uploads:
            yield Uploading(learner, uploads, metrics)


async def test_each_trajectory_gets_its_receipt() -> None:
    async with _uploading() as up:
        receipts = await asyncio.gather(*(up.uploads.upload(up.trajectory()) for _ in range(10)))
        assert all(receipt.error is None for receipt in receipts)
        assert up.arrived == list(range(1, 11))
        assert up.count("accepted") == 10


async def test_a_refused_trajectory_leaves_the_stream_open_and_is_counted_by_reason() -> None:
    async with _uploading() as up:
        up.learner.refusal = lambda trajectory: (
            FailedPrecondition("9 versions old", reason="POLICY_LAG") if trajectory.sequence == 2 else None
        )
        receipts = [await up.uploads.upload(up.trajectory()) for _ in range(3)]
        assert [receipt.error.reason if receipt.error else "" for receipt in receipts] == ["", "POLICY_LAG", ""]
        assert isinstance(receipts[1].error, FailedPrecondition)
        assert up.count("POLICY_LAG") == 1
        assert up.metrics.reconnects.labels("learner")._value.get() == 0


async def test_no_more_than_the_limit_are_in_flight() -> None:
    async with _uploading(uploads_in_flight=3) as up:
        up.learner.silent = True
        tasks = [asyncio.create_task(up.uploads.upload(up.trajectory())) for _ in range(6)]
        await up.learner.until(lambda: len(up.arrived) == 3)
        up.learner.silent = False
        up.learner.break_streams()
        assert all(receipt.error is None for receipt in await asyncio.gather(*tasks))
        assert up.arrived == [1, 2, 3, 1, 2, 3, 4, 5, 6]
        assert up.metrics.resent_uploads._value.get() == 3


async def test_one_is_in_flight_when_the_learner_has_no_room() -> None:
    async with _uploading(uploads_in_flight=4) as up:
        up.learner.credits = 0
        await up.uploads.upload(up.trajectory())
        up.learner.silent = True
        tasks = [asyncio.create_task(up.uploads.upload(up.trajectory())) for _ in range(3)]
        await up.learner.until(lambda: up.arrived == [1, 2])
        assert up.uploads._in_flight == {2}
        up.learner.silent = False
        up.learner.break_streams()
        await asyncio.gather(*tasks)


async def test_a_resent_trajectory_that_had_arrived_counts_as_accepted() -> None:
    async with _uploading() as up:
        up.learner.silent = True
        task = asyncio.create_task(up.uploads.upload(up.trajectory()))
        await up.learner.until(lambda: up.arrived == [1])
        up.learner.silent = False
        up.learner.refusal = lambda trajectory: FailedPrecondition("known", reason="DUPLICATE_TRAJECTORY")
        up.learner.break_streams()
        assert (await task).error is None
        first_time = await up.uploads.upload(up.trajectory())
        assert first_time.error is not None
        assert first_time.error.reason == "DUPLICATE_TRAJECTORY"


async def test_a_trajectory_without_a_receipt_in_time_is_given_up() -> None:
    async with _uploading(upload_seconds=0.1) as up:
        up.learner.silent = True
        with pytest.raises(DeadlineExceeded, match=r"no receipt for trajectory 1 within 0\.1 seconds"):
            await up.uploads.upload(up.trajectory())
        assert up.count("DEADLINE_EXCEEDED") == 1


async def test_an_unreachable_learner_is_named_when_the_time_is_up() -> None:
    metrics = ActorMetrics(CollectorRegistry())
    limits = LimitsConfig(upload_seconds=0.3, reconnect_seconds=0.02)
    async with open_channel("127.0.0.1:1") as channel:
        uploads = Uploads(upload_stream(channel), limits=limits, metrics=metrics, rng=random.Random(0))
        async with uploads:
            with pytest.raises(DeadlineExceeded, match=r"failed to connect|Connection refused"):
                await uploads.upload(_encoded(1))


class _Dying:
    """A stream that breaks in the very turn in which its reader is cancelled."""

    def __init__(self) -> None:
        self.reading = asyncio.Event()

    def open(self) -> "_Dying":
        return self

    async def initial_metadata(self) -> tuple[()]:
        return ()

    async def read(self) -> None:
        self.reading.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Unavailable("the stream broke") from None

    async def write(self, request: object) -> None:
        await asyncio.Event().wait()

    def cancel(self) -> None:
        """Nothing is left to cancel."""


async def test_leaving_while_the_stream_breaks_still_leaves() -> None:
    stream: Any = _Dying()
    limits, metrics = LimitsConfig(upload_seconds=0.05), ActorMetrics(CollectorRegistry())
    async with asyncio.timeout(60):
        async with Uploads(stream.open, limits=limits, metrics=metrics, rng=random.Random(0)) as uploads:
            with pytest.raises(DeadlineExceeded):
                await uploads.upload(_encoded(1))
            assert stream.reading.is_set()


async def test_a_trajectory_too_large_for_a_message_is_refused_here() -> None:
    async with _uploading(message_bytes=64 << 10) as up:
        with pytest.raises(ResourceExhausted, match=r"the limit is 65536 \(limits\.message_bytes\)"):
            await up.uploads.upload(up.trajectory(size=70_000))
        assert up.arrived == []
        assert up.count("TOO_LARGE") == 1


async def test_a_trajectory_too_large_for_the_learner_is_refused_here_once_it_has_said_its_limit() -> None:
    async with _uploading() as up:
        up.learner.message_bytes = 100_000
        await up.uploads.upload(up.trajectory())
        with pytest.raises(ResourceExhausted, match=r"the limit is 100000 \(the learner's listen\.max_message_bytes\)"):
            await up.uploads.upload(up.trajectory(size=110_000))
        assert len(up.arrived) == 1


async def test_a_very_large_trajectory_waits_for_the_learners_limit() -> None:
    async with _uploading() as up:
        up.learner.message_bytes = 9 << 20
        with pytest.raises(ResourceExhausted, match=r"the limit is 9437184 \(the learner's"):
            await up.uploads.upload(up.trajectory(size=10 << 20))
        assert up.learner.upload_streams == 1


async def test_who_waits_is_told_when_the_actor_leaves() -> None:
    async with _uploading() as up:
        up.learner.silent = True
        task = asyncio.create_task(up.uploads.upload(up.trajectory()))
        await up.learner.until(lambda: up.arrived == [1])
    with pytest.raises(Unavailable, match="the actor leaves"):
        await task


async def test_one_stream_serves_all_uploads_and_none_is_opened_before() -> None:
    async with _uploading() as up:
        await asyncio.sleep(0)
        assert up.learner.upload_streams == 0
        for _ in range(3):
            await up.uploads.upload(up.trajectory())
        assert up.learner.upload_streams == 1


async def test_a_receipt_for_several_settles_every_trajectory_it_names() -> None:
    async with _uploading(uploads_in_flight=4) as up:
        up.learner.together = 4
        receipts = await asyncio.gather(*(up.uploads.upload(up.trajectory()) for _ in range(8)))
        assert all(receipt.error is None for receipt in receipts)
        assert up.arrived == list(range(1, 9))
        assert up.count("accepted") == 8
