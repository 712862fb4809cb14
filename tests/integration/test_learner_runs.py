"""Several runs of one learner over real gRPC: their lives, and what is left of them after a restart."""

import asyncio
import contextlib
import json

import grpc
import pytest

from learner.build import build_runs, build_services
from learner.config import LearnerConfig
from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.testing import serve, wait_until_async
from parlmesh.v1 import policy_service_pb2 as policy_pb
from parlmesh.v1 import training_service_pb2 as pb
from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceStub
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub
from parlmesh.wire import struct_to_proto

pytestmark = pytest.mark.usefixtures("without_pictures")

WAIT = 60.0
SMALL = {"num_envs": 4, "trajectory_steps": 8, "hidden": [8], "evaluation_episodes": 2, "goal_return": None}
ENDLESS = {**SMALL, "step_budget": 10**9, "checkpoint_interval_versions": 2}
SHORT = {**SMALL, "step_budget": 100}


class Learner:
    """A serial learner in this process. It can end gracefully or as by kill -9, and be started again."""

    def __init__(self, folder, **settings):
        training = settings.pop("training", ENDLESS)
        self.config = LearnerConfig(mode="serial", run_dir=folder / "run", training=training, **settings)

    async def __aenter__(self):
        self._stack = contextlib.AsyncExitStack()
        scheduler = await self._stack.enter_async_context(open_channel("127.0.0.1:1"))
        self.runs, self.stop, stopping = build_runs(self.config, scheduler), asyncio.Event(), asyncio.Event()
        self.runs.open()
        self.keeping = asyncio.ensure_future(self.runs.keep(self.stop))
        address = await self._stack.enter_async_context(serve(build_services(self.config, self.runs, stopping)))
        self._stack.callback(stopping.set)
        channel = await self._stack.enter_async_context(open_channel(address))
        self.stub, self.policies = TrainingServiceStub(channel), PolicyServiceStub(channel)
        return self

    async def __aexit__(self, *_):
        """As by kill -9 unless `end` was called: nothing more is written."""
        self.keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.keeping
        await self._stack.aclose()

    async def end(self):
        self.stop.set()
        async with asyncio.timeout(WAIT):
            await self.keeping

    async def call(self, method, **request):
        message = getattr(pb, f"{method}Request")(**request)
        return await getattr(self.stub, method)(message, timeout=WAIT)

    async def create(self, run_id="", **configuration):
        return (await self.call("CreateTraining", run_id=run_id, configuration=struct_to_proto(configuration))).training

    async def get(self, run_id=""):
        return (await self.call("GetTraining", run_id=run_id)).training

    async def states(self):
        listed = await self.call("ListTrainings")
        return {training.run_id: state(training) for training in listed.trainings}

    async def ended(self, run_id):
        watch = self.stub.WatchTraining(pb.WatchTrainingRequest(run_id=run_id), timeout=WAIT)
        return [answer.training async for answer in watch][-1]

    async def trains_past(self, run_id, steps):
        async def past():
            return (await self.get(run_id)).progress.steps > steps

        await wait_until_async(past, WAIT)

    async def refused(self, method, **request):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.call(method, **request)
        error = error_from_rpc(raised.value)
        return raised.value.code().name, error.reason, error.message


def state(training):
    return pb.TrainingState.Name(training.state).removeprefix("TRAINING_STATE_").lower()


async def test_a_created_run_waits_is_started_and_ends_beside_the_configured_one(tmp_path):
    async with Learner(tmp_path) as learner:
        created = await learner.create("mine", **SHORT)
        assert (created.run_id, state(created)) == ("mine", "created")
        assert created.configuration["ppo"]["epochs"] == 4, "defaults included"
        assert (await learner.states()) == {"run": "running", "mine": "created"}
        assert list(await learner.states()) == ["mine", "run"], "newest first"
        started = await learner.call("StartTraining", run_id="mine")
        assert state(started.training) == "running"
        ended = await learner.ended("mine")
        assert (state(ended), ended.reason) == ("finished", "used the budget of 100 steps")
        assert ended.progress.steps >= 100
        assert len(ended.result.policy_digest) == 64
        assert ended.result.best_evaluation_return == ended.progress.evaluation_return
        assert ended.result.policy_version == ended.progress.policy_version
        assert state(await learner.get("run")) == "running"
        assert (await policy(learner, "mine"))[0].header.digest.hex() == ended.result.policy_digest


async def policy(learner, run_id):
    request = policy_pb.GetPolicyRequest(run_id=run_id)
    return [answer async for answer in learner.policies.GetPolicy(request, timeout=WAIT)]


async def test_an_id_is_chosen_when_none_is_given(tmp_path):
    async with Learner(tmp_path) as learner:
        first, second = await learner.create(**SHORT), await learner.create()
        assert first.run_id.startswith("cartpole-v1-")
        assert first.run_id != second.run_id
        assert second.configuration["num_envs"] == 64


@pytest.mark.parametrize(
    ("request_", "code", "reason", "sentence"),
    [
        ({"run_id": "run"}, "ALREADY_EXISTS", "ALREADY_EXISTS", "run 'run' exists and is running"),
        ({"run_id": "../x"}, "INVALID_ARGUMENT", "RUN_ID", "run_id must match"),
        (
            {"configuration": {"num_envs": 0}},
            "INVALID_ARGUMENT",
            "CONFIG",
            "num_envs must be >= 1 and <= 65536, got 0",
        ),
        ({"configuration": {"sed": 1}}, "INVALID_ARGUMENT", "CONFIG", 'unknown key "sed" (did you mean "seed"?)'),
        (
            {"configuration": {"environment": {"id": "Nowhere-v0"}}},
            "INVALID_ARGUMENT",
            "ENVIRONMENT",
            "environment 'Nowhere-v0' cannot be made",
        ),
        ({"configuration": {"hidden": [100_000, 100_000]}}, "INVALID_ARGUMENT", "CONFIG", "to 65536, got 100000"),
        ({"configuration": {"hidden": [65_536, 65_536]}}, "INVALID_ARGUMENT", "CONFIG", "(max_policy_bytes"),
        (
            {"configuration": {"batch_trajectories": 2_000}},
            "INVALID_ARGUMENT",
            "CONFIG",
            "no batch would ever be complete",
        ),
    ],
)
async def test_a_run_that_cannot_work_is_refused_and_leaves_nothing(tmp_path, request_, code, reason, sentence):
    async with Learner(tmp_path) as learner:
        if "configuration" in request_:
            request_ = {**request_, "configuration": struct_to_proto(request_["configuration"])}
        found = await learner.refused("CreateTraining", **request_)
        assert found[:2] == (code, reason)
        assert sentence in found[2]
        assert list(await learner.states()) == ["run"]
        assert not (tmp_path / "run" / "runs").exists()


async def test_without_an_id_the_only_run_is_meant_and_several_are_named(tmp_path):
    async with Learner(tmp_path) as learner:
        assert (await learner.get()).run_id == "run"
        await learner.create("other", **SHORT)
        for method in ("GetTraining", "StartTraining", "PauseTraining", "ResumeTraining", "StopTraining"):
            code, reason, message = await learner.refused(method)
            assert (code, reason) == ("INVALID_ARGUMENT", "RUN_ID_NEEDED")
            assert message == "run_id is needed: this learner has 2 runs, 'other', 'run'"
        code, reason, message = await learner.refused("GetTraining", run_id="x")
        assert (code, reason) == ("NOT_FOUND", "UNKNOWN_RUN")


async def test_every_step_of_a_life_is_refused_where_it_does_not_fit(tmp_path):
    async with Learner(tmp_path) as learner:
        await learner.create("r", **ENDLESS)
        for method in ("PauseTraining", "ResumeTraining"):
            assert (await learner.refused(method, run_id="r"))[0] == "FAILED_PRECONDITION"
        await learner.call("StartTraining", run_id="r")
        await learner.trains_past("r", 0)
        assert "already" in (await learner.refused("StartTraining", run_id="r"))[2]
        paused = await learner.call("PauseTraining", run_id="r")
        assert state(paused.training) == "paused"
        assert "this one is paused" in (await learner.refused("PauseTraining", run_id="r"))[2]
        assert state((await learner.call("ResumeTraining", run_id="r")).training) == "running"
        await learner.call("StopTraining", run_id="r")
        ended = await learner.ended("r")
        assert (state(ended), ended.reason) == ("stopped", "stopped on request")
        assert list((tmp_path / "run" / "runs" / "r" / "checkpoints").glob(f"v*{ended.progress.policy_version}"))
        for method in ("StartTraining", "PauseTraining", "ResumeTraining"):
            assert (await learner.refused(method, run_id="r"))[0] == "FAILED_PRECONDITION"
        assert state((await learner.call("StopTraining", run_id="r")).training) == "stopped", "harmless"


async def test_a_created_run_can_be_stopped_before_it_began(tmp_path):
    async with Learner(tmp_path) as learner:
        await learner.create("r", **ENDLESS)
        assert state((await learner.call("StopTraining", run_id="r")).training) == "stopped"


async def test_limits_are_named(tmp_path):
    async with Learner(tmp_path, max_runs=2, max_running_runs=1) as learner:
        await learner.create("r", **SHORT)
        code, reason, message = await learner.refused("CreateTraining")
        assert (code, reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_RUNS")
        code, reason, message = await learner.refused("StartTraining", run_id="r")
        assert (code, reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_RUNNING")
        assert message == "1 runs are running; the limit is 1 (max_running_runs): pause or stop one first"
        await learner.call("PauseTraining", run_id="run")
        await learner.call("StartTraining", run_id="r")
        assert state(await learner.ended("r")) == "finished"


@pytest.mark.parametrize("gracefully", [True, False])
async def test_every_run_is_after_a_restart_what_it_was_before(tmp_path, gracefully):
    async with Learner(tmp_path) as learner:
        for name, configuration in {"waits": SHORT, "rests": ENDLESS, "goes": ENDLESS, "ended": SHORT}.items():
            await learner.create(name, **configuration)
        for name in ("rests", "goes", "ended"):
            await learner.call("StartTraining", run_id=name)
        ended = await learner.ended("ended")
        await learner.trains_past("rests", 100)
        await learner.call("PauseTraining", run_id="rests")
        checkpoints = tmp_path / "run" / "runs" / "goes" / "checkpoints"
        await wait_until_async(lambda: len(list(checkpoints.glob("v*"))) >= 2, WAIT)
        if gracefully:
            await learner.end()
    expected = {"run": "running", "waits": "created", "rests": "paused", "goes": "running", "ended": "finished"}
    async with Learner(tmp_path) as learner:
        await wait_until_async(lambda: learner.runs.get("rests").live and learner.runs.get("goes").live, WAIT)
        assert await learner.states() == expected
        assert list(await learner.states()) == ["ended", "goes", "rests", "waits", "run"]
        assert await learner.get("ended") == ended
        served = (await policy(learner, "ended"))[0].header
        assert (served.version, served.digest.hex()) == (ended.result.policy_version, ended.result.policy_digest)
        rested = (await learner.get("rests")).progress.steps
        assert rested > 0, "from its checkpoint"
        before = (await learner.get("goes")).progress.steps
        assert before > 0, "from its checkpoint"
        await learner.trains_past("goes", before)
        assert (await learner.get("rests")).progress.steps == rested
        await learner.call("ResumeTraining", run_id="rests")
        await learner.trains_past("rests", rested)
        await learner.call("StartTraining", run_id="waits")
        assert state(await learner.ended("waits")) == "finished"


async def test_the_configured_run_stays_ended_until_its_configuration_changes(tmp_path):
    async with Learner(tmp_path, training=SHORT) as learner:
        first = await learner.ended("run")
    async with Learner(tmp_path, training=SHORT) as learner:
        assert await learner.get() == first
    async with Learner(tmp_path, training=SHORT, reopen_ended=True) as learner:
        again = await learner.ended("run")
        assert (state(again), again.progress.steps) == ("finished", first.progress.steps)
    async with Learner(tmp_path, training={**SHORT, "step_budget": 300}) as learner:
        assert (await learner.ended("run")).progress.steps >= 300
    async with Learner(tmp_path, training={**SHORT, "step_budget": 300}) as learner:
        assert (await learner.get()).progress.steps >= 300


async def test_a_damaged_record_costs_only_its_run(tmp_path):
    async with Learner(tmp_path) as learner:
        for name in ("good", "torn", "odd"):
            await learner.create(name, **SHORT)
    folder = tmp_path / "run" / "runs"
    (folder / "torn" / "run.json").write_text("{")
    record = json.loads((folder / "odd" / "run.json").read_text())
    record["configuration"]["num_envs"] = -1
    (folder / "odd" / "run.json").write_text(json.dumps(record))
    async with Learner(tmp_path) as learner:
        assert set(await learner.states()) == {"run", "good"}


async def test_a_run_whose_environment_is_gone_fails_and_the_others_go_on(tmp_path):
    async with Learner(tmp_path) as learner:
        await learner.create("r", **ENDLESS)
    file = tmp_path / "run" / "runs" / "r" / "run.json"
    record = json.loads(file.read_text())
    record["configuration"]["environment"]["id"] = "Gone-v0"
    file.write_text(json.dumps({**record, "state": "running"}))
    async with Learner(tmp_path) as learner:
        failed = await learner.ended("r")
        assert state(failed) == "failed"
        assert "environment 'Gone-v0' cannot be made" in failed.reason
        await learner.trains_past("run", (await learner.get("run")).progress.steps)
