"""Looks at a fleet under faults: policy versions, the learner's books, runs that must finish, memory."""

import asyncio
import re
import urllib.request
from collections import defaultdict
from typing import Any

import grpc
import grpc.aio
import psutil
from google.protobuf.struct_pb2 import Struct

from parlmesh.rpc import open_channel
from parlmesh.testing.history import Journal, Scrape, Version, now
from parlmesh.v1 import training_service_pb2 as pb
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub

from .fleet import ChaosFleet
from .memory import Sample

_CALL_SECONDS = 3.0
_SCRAPE_SECONDS = 0.25
_MEMORY_SECONDS = 5.0
_MEBIBYTE = 1 << 20
_BOOKS = re.compile(
    r"^parlmesh_learner_trajectories_(received_total|trained_total|queued|dropped_total)\S* (\S+)$", re.M
)
SHORT_RUN: dict[str, Any] = {
    "num_envs": 4,
    "trajectory_steps": 16,
    "hidden": [8],
    "goal_return": None,
    "step_budget": 4_000,
}


class Observer:
    """Records what it sees; decides nothing."""

    def __init__(self, fleet: ChaosFleet, journal: Journal) -> None:
        self._fleet = fleet
        self._journal = journal
        self.scrapes = 0
        self.finished_runs = 0
        self.failed_runs: list[str] = []
        self.steps = 0
        self.memory: dict[str, list[Sample]] = defaultdict(list)
        self.stopping = False

    async def scrape(self) -> None:
        """Records the books as Prometheus gets them, until cancelled."""
        while True:
            await asyncio.sleep(_SCRAPE_SECONDS)
            try:
                page = await asyncio.to_thread(self._page)
            except OSError:
                continue
            books: dict[str, int] = defaultdict(int)
            for name, value in _BOOKS.findall(page):
                books[name.removesuffix("_total")] += int(float(value))
            if books:
                self.scrapes += 1
                self._journal.add(Scrape("learner", now(), **{name: books[name] for name in _NAMES}))

    async def follow_versions(self) -> None:
        """Records the newest version of every run, until cancelled."""
        async with open_channel(self._fleet.learner_address) as channel:
            stub: Any = TrainingServiceStub(channel)
            while True:
                await asyncio.sleep(_SCRAPE_SECONDS)
                try:
                    answer = await stub.ListTrainings(pb.ListTrainingsRequest(), timeout=_CALL_SECONDS)
                except grpc.aio.AioRpcError:
                    continue
                for training in answer.trainings:
                    version = training.progress.policy_version
                    if version:
                        self._journal.add(Version("observer", training.run_id, version, now()))
                    if training.run_id == "run":
                        self.steps = max(self.steps, training.progress.steps)

    async def train(self) -> None:
        """One short run after another, until `stopping`; each must finish."""
        async with open_channel(self._fleet.learner_address) as channel:
            stub: Any = TrainingServiceStub(channel)
            number = 0
            while not self.stopping:
                number += 1
                ended = await self._one_run(stub, f"short-{number}")
                if ended.state == pb.TRAINING_STATE_FINISHED:
                    self.finished_runs += 1
                else:
                    self.failed_runs.append(f"{ended.run_id} {pb.TrainingState.Name(ended.state)}: {ended.reason}")

    async def watch_memory(self) -> None:
        """Records the resident MiB of every process, until cancelled."""
        start = now()
        while True:
            for member in self._fleet.members.values():
                if member.running and member.process is not None:
                    try:
                        resident = psutil.Process(member.process.pid).memory_info().rss / _MEBIBYTE
                    except psutil.Error:
                        continue
                    sample = Sample(round(now() - start, 1), round(resident, 1), member.starts)
                    self.memory[member.name].append(sample)
            await asyncio.sleep(_MEMORY_SECONDS)

    async def _one_run(self, stub: Any, run_id: str) -> pb.Training:
        configuration = Struct()
        configuration.update(SHORT_RUN)
        created = pb.CreateTrainingRequest(run_id=run_id, configuration=configuration)
        await _insisted(stub.CreateTraining, created, harmless=grpc.StatusCode.ALREADY_EXISTS)
        start = pb.StartTrainingRequest(run_id=run_id)
        await _insisted(stub.StartTraining, start, harmless=grpc.StatusCode.FAILED_PRECONDITION)
        while True:
            answer = await _insisted(stub.GetTraining, pb.GetTrainingRequest(run_id=run_id))
            ended = answer.training.state in (pb.TRAINING_STATE_FINISHED, pb.TRAINING_STATE_FAILED)
            # A learner that was told to stop gives that as its runs' reason, and resumes them when it is back.
            stopped = (
                answer.training.state == pb.TRAINING_STATE_STOPPED and "told to stop" not in answer.training.reason
            )
            if ended or stopped:
                found: pb.Training = answer.training
                return found
            await asyncio.sleep(_SCRAPE_SECONDS)

    def _page(self) -> str:
        address = f"http://127.0.0.1:{self._fleet.learner_metrics}/metrics"
        with urllib.request.urlopen(address, timeout=_CALL_SECONDS) as answer:
            found: bytes = answer.read()
        return found.decode()


_NAMES = ("received", "trained", "queued", "dropped")


async def _insisted(method: Any, request: Any, harmless: grpc.StatusCode | None = None) -> Any:
    """Asks until it is answered; `harmless` means that an earlier try, whose answer was lost, had worked."""
    while True:
        try:
            return await method(request, timeout=_CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is harmless:
                return None
            if error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND):
                raise
        await asyncio.sleep(_SCRAPE_SECONDS)
