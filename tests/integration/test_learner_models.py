"""ModelService over real gRPC."""

import asyncio

import grpc
import numpy as np
import onnxruntime
import pytest

from learner.build import build_runs, build_services
from learner.config import LearnerConfig, TrainingConfig
from parlmesh.policies import load_policy
from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.testing import serve
from parlmesh.v1 import model_service_pb2 as pb
from parlmesh.v1.model_service_pb2_grpc import ModelServiceStub

pytestmark = pytest.mark.usefixtures("without_pictures")

WAIT = 60.0
TRAINING = {
    "num_envs": 4,
    "trajectory_steps": 8,
    "hidden": [8],
    "step_budget": 500,
    "goal_return": None,
    "evaluation_interval_steps": 150,
    "evaluation_episodes": 2,
    "normalise_observations": True,
}


@pytest.fixture
async def learner(tmp_path):
    """The models of a run that has ended."""
    config = LearnerConfig(mode="serial", run_dir=tmp_path, training=TrainingConfig.model_validate(TRAINING))
    scheduler, stop = open_channel("127.0.0.1:1"), asyncio.Event()
    runs = build_runs(config, scheduler)
    runs.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(runs.keep(stop))
        entry = runs.get("")
        async with asyncio.timeout(WAIT):
            while not entry.state.final:
                await entry.changed()
        async with serve(build_services(config, runs, stop)) as address, open_channel(address) as channel:
            yield ModelServiceStub(channel)
        stop.set()
    await scheduler.close()


async def listed(learner, **request):
    return list((await learner.ListModels(pb.ListModelsRequest(**request), timeout=WAIT)).models)


async def got(learner, **request):
    return (await learner.GetModel(pb.GetModelRequest(**request), timeout=WAIT)).model


async def exported(learner, **request):
    answers = learner.ExportModel(pb.ExportModelRequest(**request), timeout=WAIT)
    return b"".join([answer.data async for answer in answers])


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code().name, error_from_rpc(raised.value).reason


async def test_what_was_evaluated_is_kept_with_what_is_known_of_it(learner):
    models = await listed(learner)
    assert len(models) >= 3
    assert [model.version for model in models] == sorted((model.version for model in models), reverse=True)
    assert models == await listed(learner, run_id="run")
    newest = models[0]
    assert newest.metadata["environment"] == "CartPole-v1"
    assert newest.metadata["algorithm"] == "ppo"
    assert newest.metadata["steps"] >= 500
    assert newest.metadata["evaluation_return"] > 0
    assert len(newest.digest) == 32
    assert not any(model.promoted for model in models)


async def test_a_model_is_promoted_rolled_back_and_protected(learner):
    newest, *_, oldest = await listed(learner)
    assert (await got(learner)).version == newest.version
    for version in (newest.version, oldest.version):
        answer = await learner.PromoteModel(pb.PromoteModelRequest(run_id="run", version=version), timeout=WAIT)
        assert answer.model.promoted
        found = await got(learner)
        assert (found.version, found.promoted) == (version, True)
    deletion = pb.DeleteModelRequest(run_id="run", version=oldest.version)
    assert await refused(learner.DeleteModel(deletion, timeout=WAIT)) == ("FAILED_PRECONDITION", "MODEL_PROMOTED")
    await learner.DeleteModel(pb.DeleteModelRequest(run_id="run", version=newest.version), timeout=WAIT)
    assert newest.version not in [model.version for model in await listed(learner)]
    gone = pb.GetModelRequest(run_id="run", version=newest.version)
    assert await refused(learner.GetModel(gone, timeout=WAIT)) == ("NOT_FOUND", "UNKNOWN_MODEL")


async def test_what_must_be_named_is_asked_for(learner):
    for call in (learner.PromoteModel(pb.PromoteModelRequest()), learner.DeleteModel(pb.DeleteModelRequest())):
        assert await refused(call) == ("INVALID_ARGUMENT", "VERSION_NEEDED")
    assert await refused(learner.GetModel(pb.GetModelRequest(run_id="x"))) == ("NOT_FOUND", "UNKNOWN_RUN")
    script = exported(learner, format=pb.MODEL_FORMAT_TORCHSCRIPT)
    assert await refused(script) == ("INVALID_ARGUMENT", "FORMAT")


async def test_an_exported_model_acts_as_ours_from_the_raw_observation(learner):
    ours = load_policy(await exported(learner, format=pb.MODEL_FORMAT_SAFETENSORS))
    theirs = onnxruntime.InferenceSession(await exported(learner, format=pb.MODEL_FORMAT_ONNX))
    seen = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    action = theirs.run(["action"], {"observation": seen})[0]
    np.testing.assert_array_equal(action, ours.greedy(seen).action)
    assert 0 < action.sum() < 200
