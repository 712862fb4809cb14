"""Experience of a program's own, while the run trains on."""

from typing import Any

import grpc.aio
import numpy as np
import pytest

from parlmesh.client.experience_upload import ExperienceUploads, Step
from parlmesh.errors import FailedPrecondition
from parlmesh.v1.training_service_pb2 import Training


class Racing(ExperienceUploads):
    """The run has three newer versions whenever a trajectory arrives, twice."""

    def __init__(self, channel: grpc.aio.Channel, algorithm: str) -> None:
        super().__init__(channel, "one")
        self.algorithm = algorithm
        self.versions: list[int] = []

    async def _training(self, seconds: float) -> Training:
        training = Training(run_id="one", run_uid="uid")
        training.configuration.update({"trajectory_steps": 2, "num_envs": 1, "algorithm": self.algorithm})
        training.progress.policy_version = 1
        return training

    async def _shapes(self, training: Training, seconds: float) -> Any:
        return Unchecked()

    async def _upload(self, fragment: Any, training: Training, version: int, seconds: float) -> int:
        self.versions.append(version)
        if len(self.versions) < 3:
            raise FailedPrecondition("3 versions old", reason="POLICY_LAG", newest=version + 3)
        return version


class Unchecked:
    def check(self, index: int, step: Step) -> None: ...


async def test_steps_for_an_off_policy_run_arrive_however_fast_it_trains() -> None:
    state = np.zeros(1, np.float32)
    steps = [Step(state, 0, 1.0, state, False, False)] * 2
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        uploads = Racing(channel, "dqn")
        assert (await uploads.add(steps, seconds=1)).policy_version == 7
        assert uploads.versions == [1, 4, 7]
        bound = Racing(channel, "ppo")
        with pytest.raises(FailedPrecondition, match="3 versions old"):
            await bound.add(steps, seconds=1)
        assert bound.versions == [1]
