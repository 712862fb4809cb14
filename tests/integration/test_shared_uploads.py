"""Trajectories of an actor on the learner's host: the actor's own uploads into the learner's own services."""

import asyncio
import errno
import os
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from actor.config import LimitsConfig
from actor.learner.trajectory_uploads import Uploads, upload_stream
from actor.metrics import ActorMetrics
from learner.build import build_runs, build_services
from learner.config import LearnerConfig
from learner.services.upload_folder import UploadFiles, UploadFolder, unreadable
from parlmesh.policies import load_policy
from parlmesh.rollouts import Collector, collector_seed
from parlmesh.rpc import open_channel
from parlmesh.testing import serve, wait_until_async
from parlmesh.types import OBSERVATION, REWARD, Trajectory
from parlmesh.upload_files import KEY, file_of, folder_of, told_files
from parlmesh.v1 import experience_service_pb2 as pb
from parlmesh.v1.experience_service_pb2_grpc import ExperienceServiceStub
from parlmesh.wire import trajectory_to_request

WAIT = 60.0
ENVIRONMENTS, STEPS = 64, 64


@dataclass
class Pair:
    """A learner and an actor's uploads to it."""

    runs: Any
    run: Any
    folder: Path
    uploads: Uploads
    metrics: ActorMetrics
    channel: Any

    def trajectory(self, change=None, steps=STEPS):
        policy = load_policy(self.run.registry.get("").blob.data)
        fragment = Collector({"id": "CartPole-v1"}, ENVIRONMENTS, collector_seed(0, "a", 1)).collect(policy, steps)
        if change is not None:
            change(fragment.columns)
        sequence = self.uploads.next_sequence()
        return fragment, trajectory_to_request(Trajectory("run", "a", 1, sequence, 1, fragment))

    @property
    def shared(self):
        return self.metrics.shared_uploads._value.get()

    @property
    def files(self):
        return sorted(file.name for file in self.folder.iterdir() if "-" in file.name)


def shared_folder(run_dir):
    folder = folder_of(run_dir)
    assert folder is not None, "this machine has no shared memory"
    return folder


@asynccontextmanager
async def pair(run_dir, **experience):
    config = LearnerConfig.model_validate(
        {
            "run_dir": run_dir,
            "training": {"num_envs": ENVIRONMENTS, "trajectory_steps": STEPS, "hidden": [8]},
            "experience": {"max_trajectory_bytes": 1 << 20, **experience},
        }
    )
    scheduler, stopping, metrics = open_channel("127.0.0.1:1"), asyncio.Event(), ActorMetrics(CollectorRegistry())
    runs = build_runs(config, scheduler)
    runs.open()
    live = runs.get("").live
    assert live is not None
    run = live.run
    run.publish()
    limits = LimitsConfig(uploads_in_flight=3, reconnect_seconds=0.02)
    async with serve(build_services(config, runs, stopping)) as address, open_channel(address) as channel:
        async with Uploads(upload_stream(channel), limits=limits, metrics=metrics, rng=random.Random(0)) as uploads:
            found = Pair(runs, run, shared_folder(run_dir), uploads, metrics, channel)
            # The stream's first goes before the learner has said where its files are.
            _, first = found.trajectory()
            assert (await uploads.upload(first)).error is None
            yield found
        await wait_until_async(lambda: not found.folder.exists(), WAIT)
        stopping.set()
    await scheduler.close()


async def test_they_are_handed_over_in_shared_memory_and_arrive_unchanged(tmp_path):
    async with pair(tmp_path) as both:
        sent = [both.trajectory() for _ in range(20)]
        receipts = await asyncio.gather(*(both.uploads.upload(each) for _, each in sent))
        assert [receipt.error for receipt in receipts] == [None] * 20
        assert both.shared == 20
        assert len(both.files) <= 3, "files are written again once they were read"
        arrived = {each.sequence: each.fragment for each in both.run.queue._queue}
        for fragment, encoded in sent:
            for name, column in fragment.columns.items():
                np.testing.assert_array_equal(arrived[encoded.sequence].columns[name], column)


async def test_what_was_read_does_not_change_when_its_file_is_written_again(tmp_path):
    async with pair(tmp_path) as both:
        fragment, encoded = both.trajectory()
        await both.uploads.upload(encoded)
        for name in both.files:
            (both.folder / name).write_bytes(bytes(1 << 20))
        kept = both.run.queue._queue[-1].fragment.columns[OBSERVATION]
        np.testing.assert_array_equal(kept, fragment.columns[OBSERVATION])


async def test_a_refused_one_gets_its_reason_and_its_file_is_used_again(tmp_path):
    def spoil(columns):
        columns[REWARD] = np.full_like(columns[REWARD], np.nan)

    async with pair(tmp_path) as both:
        for _ in range(5):
            _, bad = both.trajectory(spoil)
            assert (await both.uploads.upload(bad)).error.reason == "NOT_FINITE"
        assert both.shared == 5
        assert len(both.files) == 1


async def test_those_whose_files_cannot_be_read_are_sent(tmp_path, monkeypatch):
    def fails(self, number):
        raise unreadable("as the test wishes")

    async with pair(tmp_path) as both:
        monkeypatch.setattr(UploadFiles, "descriptor", fails)
        receipts = await asyncio.gather(*(both.uploads.upload(both.trajectory()[1]) for _ in range(6)))
        assert [receipt.error for receipt in receipts] == [None] * 6
        assert 1 <= both.shared <= 3, "no more than were under way when the first was refused"
        assert len(both.run.queue) == 7
        assert both.metrics.reconnects.labels("learner")._value.get() == 0


async def test_they_are_sent_where_shared_memory_is_full(tmp_path, monkeypatch):
    tries = []

    def full(descriptor, data, position):
        tries.append(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    async with pair(tmp_path) as both:
        monkeypatch.setattr(os, "pwrite", full)
        for _ in range(3):
            assert (await both.uploads.upload(both.trajectory()[1])).error is None
        assert (len(tries), both.shared) == (1, 0)


async def test_they_are_sent_where_the_learner_offers_no_files(tmp_path):
    async with pair(tmp_path, shared_memory=False) as both:
        assert (await both.uploads.upload(both.trajectory()[1])).error is None
        assert both.shared == 0
        assert not both.folder.exists()


async def test_files_of_a_killed_learner_are_removed_before_the_first_stream(tmp_path):
    folder = shared_folder(tmp_path)
    folder.mkdir(mode=0o700)
    (folder / "left-0").write_bytes(b"x")
    async with pair(tmp_path) as both:
        assert folder == both.folder
        assert not (folder / "left-0").exists()


def test_a_folder_that_others_may_read_is_not_used(tmp_path):
    folder = UploadFolder(tmp_path / "open")
    (tmp_path / "open").mkdir(mode=0o755)
    assert folder.open() is None
    assert folder.open() is None


def write(told, data):
    Path(file_of(told, 0)).write_bytes(data)


async def lies(both, *files, content=None):
    """The reasons that a client gets which names these files."""
    stub, reasons = ExperienceServiceStub(both.channel), []
    call = stub.UploadTrajectories(timeout=WAIT)
    told = dict(await call.initial_metadata())[KEY]
    if content is not None:
        content(Path(file_of(told, 0)))
    for number, size in files:
        named = pb.UploadFile(number=number, size_bytes=size, sequence=7)
        await call.write(pb.UploadTrajectoriesRequest(file=named))
        receipt = await call.read()
        assert receipt.sequence == 7
        info = receipt.status.details[0].value
        reasons.append(next(each for each in ("UPLOAD_FILE", "TOO_LARGE") if each.encode() in info))
    call.cancel()
    return reasons


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="missing"),
        pytest.param(lambda file: file.symlink_to("/etc/passwd"), id="link"),
        pytest.param(os.mkfifo, id="pipe"),
        pytest.param(lambda file: file.mkdir(), id="folder"),
        pytest.param(lambda file: file.write_bytes(b"short"), id="short"),
    ],
)
async def test_a_file_that_is_not_what_was_named_is_refused_and_the_stream_goes_on(tmp_path, content):
    async with pair(tmp_path) as both:
        assert await lies(both, (0, 100), (0, 100), content=content) == ["UPLOAD_FILE"] * 2


async def test_numbers_and_sizes_beyond_the_limits_are_refused_before_anything_is_read(tmp_path):
    async with pair(tmp_path) as both:
        assert await lies(both, (64, 100), (1 << 31, 100)) == ["UPLOAD_FILE"] * 2
        assert await lies(both, (0, (4 << 20) + 1), (0, 1 << 62)) == ["TOO_LARGE"] * 2


async def test_refused_files_are_counted_and_one_that_no_honest_actor_names_is_a_strike(tmp_path):
    async with pair(tmp_path) as both:
        await lies(both, (0, 100), (64, 100), (0, (4 << 20) + 1))
        assert both.runs.past.dropped == {"UPLOAD_FILE": 2, "TOO_LARGE": 1}
        assert both.runs.past.received == 3
        assert {sender: dict(reasons) for sender, reasons in both.runs.strikes.counts.items()} == {"": {"TOO_LARGE": 1}}


async def test_a_file_that_holds_no_trajectory_gets_the_receipt_that_its_bytes_would(tmp_path):
    async with pair(tmp_path) as both:
        call = ExperienceServiceStub(both.channel).UploadTrajectories(timeout=WAIT)
        told = dict(await call.initial_metadata())[KEY]
        nested = pb.UploadTrajectoriesRequest(file=pb.UploadFile(number=0, size_bytes=4)).SerializeToString()
        write(told, nested)
        named = pb.UploadFile(number=0, size_bytes=len(nested), sequence=1)
        await call.write(pb.UploadTrajectoriesRequest(file=named))
        receipt = await call.read()
        assert b"TRAJECTORY_ORIGIN" in receipt.status.details[0].value
        call.cancel()


async def test_an_actor_writes_to_nothing_but_the_private_folder_of_a_learner(tmp_path, monkeypatch):
    def told(path):
        return told_files([(KEY, str(path))])

    async with pair(tmp_path) as both:
        (stream,) = [file for file in both.folder.iterdir() if "-" not in file.name]
        assert told(stream) == str(stream)
        assert told(stream.with_name("0" * 32)) == "", "a name that is not there was announced by another host"
        assert told(tmp_path / stream.parent.name / stream.name) == ""
        assert told(stream.parent / "x" / ".." / stream.name) == ""
        assert told("") == told("relative") == told_files(None) == ""
        both.folder.chmod(0o755)
        assert told(stream) == ""
        both.folder.chmod(0o700)
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert told(stream) == ""
