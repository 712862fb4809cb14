"""MetricsService over real gRPC."""

import asyncio
import json

import grpc
import pytest

from learner.build import build_runs, build_services
from learner.config import LearnerConfig
from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.testing import serve
from parlmesh.training.settings.run import TrainingConfig
from parlmesh.v1 import metrics_service_pb2 as pb
from parlmesh.v1.metrics_service_pb2_grpc import MetricsServiceStub

pytestmark = pytest.mark.usefixtures("without_pictures")

WAIT = 60.0
TRAINING = {
    "num_envs": 4,
    "trajectory_steps": 8,
    "hidden": [8],
    "step_budget": 400,
    "goal_return": None,
    "evaluation_interval_steps": 100,
    "evaluation_episodes": 2,
}


async def ask(folder, *, train, **request):
    """The answer of a learner whose run has ended, in this life or in an earlier one."""
    config = LearnerConfig(mode="serial", run_dir=folder, training=TrainingConfig.model_validate(TRAINING))
    async with open_channel("127.0.0.1:1") as scheduler:
        runs, stop = build_runs(config, scheduler), asyncio.Event()
        runs.open()
        assert (runs.get("").live is not None) == train
        async with asyncio.TaskGroup() as group:
            group.create_task(runs.keep(stop))
            entry = runs.get("")
            async with asyncio.timeout(WAIT):
                while not entry.state.final:
                    await entry.changed()
            async with serve(build_services(config, runs, stop)) as address, open_channel(address) as channel:
                stub = MetricsServiceStub(channel)
                try:
                    return await stub.QueryMetrics(pb.QueryMetricsRequest(**request), timeout=WAIT)
                finally:
                    stop.set()


async def test_curves_are_asked_for_by_run_and_range_also_after_a_restart(tmp_path):
    everything = await ask(tmp_path, train=True)
    names = [series.name for series in everything.series]
    assert {
        "return/evaluation",
        "return/evaluation_best",
        "loss/policy",
        "throughput/steps_per_second",
        "policy/lag",
    } <= set(names)
    assert names == sorted(names)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    expected = [(row["step"], row["loss/policy"]) for row in rows if "loss/policy" in row]
    assert await ask(tmp_path, train=False) == everything

    some = await ask(tmp_path, train=False, names=["loss/policy"], run_id="run", first_step=100, last_step=300)
    (series,) = some.series
    found = list(zip(series.steps, series.values, strict=True))
    assert found == [point for point in expected if 100 <= point[0] <= 300]
    assert len(found) > 3

    (thin,) = (await ask(tmp_path, train=False, names=["loss/policy"], max_points=3)).series
    assert len(thin.steps) == 3
    assert (thin.steps[0], thin.steps[-1]) == (expected[0][0], expected[-1][0])

    for request, reason in (
        ({"max_points": 10_001}, "MAX_POINTS"),
        ({"first_step": 9, "last_step": 3}, "STEP_RANGE"),
        ({"names": ["x"] * 101}, "NAMES"),
    ):
        with pytest.raises(BaseExceptionGroup) as raised:
            await ask(tmp_path, train=False, **request)
        (error,) = raised.value.exceptions
        assert isinstance(error, grpc.aio.AioRpcError)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert error_from_rpc(error).reason == reason
