"""Federated rounds over real processes: nodes that die, are late, answer twice, replay and lie."""

import asyncio
import hashlib
import json
from functools import partial
from typing import Any

import grpc.aio
import numpy as np
import pytest

from parlmesh.federation.virtual_nodes import host_of
from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.testing import wait_until, wait_until_async
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.v1 import scheduler_service_pb2 as scheduler_pb
from parlmesh.v1 import task_pb2, tensor_pb2
from parlmesh.v1.federation_service_pb2_grpc import FederationServiceStub
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from parlmesh.wire import payload_from_proto, struct_to_proto

pytestmark = pytest.mark.e2e

SIZE = 40
TASK = '''
import time
import numpy as np
from parlmesh.federation.learning_task import FirstModel, Fitted, Evaluated

class Mischief:
    """Every node adds 1; what else it does is in its name."""
    def __init__(self, settings):
        pass
    def first(self, seed):
        return FirstModel({"weight": np.zeros(40, np.float32)})
    def fit(self, tensors, part):
        if "late" in part.node_id and part.round == 1:
            time.sleep(6.0)
        while "dead" in part.node_id:
            time.sleep(0.05)
            part.check()
        samples = 10**12 if "liar" in part.node_id else 10
        return Fitted({"weight": tensors["weight"] + np.float32(3.0 if "liar" in part.node_id else 1.0)}, samples)
    def evaluate(self, tensors, part):
        return Evaluated(1, {"mean": float(tensors["weight"].mean())})
'''


def update(task: dict[str, Any], value: float) -> "list[pb.SubmitUpdateRequest]":
    """An update that the node of that task could have sent."""
    data = np.full(SIZE, value, "<f4").tobytes()
    header = pb.UpdateHeader(
        federation_id="f",
        round=task["round"],
        node_id=task["node"],
        base_version=task["base_version"],
        nonce=bytes.fromhex(task["nonce"]),
        samples=10,
        digest=hashlib.sha256(data).digest(),
        size_bytes=len(data),
        tensors=[tensor_pb2.Tensor(name="weight", dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[SIZE])],
    )
    return [pb.SubmitUpdateRequest(header=header), pb.SubmitUpdateRequest(data=data)]


async def tasks_of(scheduler: Any, node: str) -> list[dict[str, Any]]:
    answer = await scheduler.ListTasks(scheduler_pb.ListTasksRequest(page_size=1000), timeout=10.0)
    found = []
    for task in answer.tasks:
        if task.spec.kind == "federated_fit" and task.spec.placement.node_id == host_of(node):
            request = scheduler_pb.GetTaskRequest(task_id=task.spec.task_id)
            whole = await scheduler.GetTask(request, timeout=10.0)
            parameters, _ = payload_from_proto(whole.task.spec.payload)
            done = whole.task.state == task_pb2.TASK_STATE_SUCCEEDED
            (member,) = [member for member in parameters["members"] if member["node_id"] == node]
            found.append({**parameters, "node": node, "nonce": member["nonce"], "done": done})
    return found


def test_rounds_close_on_time_with_the_right_model_whatever_nodes_do(fleet, tmp_path, monkeypatch):
    (tmp_path / "mischief.py").write_text(TASK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    installed = json.dumps({"mischief": "mischief:Mischief"})
    fleet.scheduler()
    fleet.learner(**{"mode": "federation", "federations.learning_tasks": installed})
    nodes = {"learning_tasks": installed, "kinds": '["federated_fit","federated_evaluate"]'}
    fleet.actor(0, **{**nodes, "actor_id": "good", "node_id": "host", "virtual_nodes": "3"})
    for name in ("liar", "late"):
        fleet.actor(1, **{**nodes, "actor_id": name, "node_id": name})
    dead = fleet.actor(2, **{**nodes, "actor_id": "dead", "node_id": "dead"})

    async def play() -> tuple[Any, list[pb.Round]]:
        async with open_channel(fleet.learner_address) as learner, open_channel(fleet.scheduler_address) as queue:
            stub, scheduler = FederationServiceStub(learner), SchedulerServiceStub(queue)
            configuration = {
                "task": "mischief",
                "rounds": 3,
                "quorum": 4,
                "round_seconds": 4.0,
                "selection": {"min_nodes": 4, "virtual_nodes": 3, "virtual_voters": True},
                "gate": {"weight_cap_factor": 2.0},
                "evaluation": {"interval_rounds": 0},
            }
            await stub.StartFederation(
                pb.StartFederationRequest(federation_id="f", configuration=struct_to_proto(configuration)), timeout=30.0
            )

            async def federation() -> pb.Federation:
                return (await stub.GetFederation(pb.GetFederationRequest(), timeout=10.0)).federation

            async def refusal(messages: "list[pb.SubmitUpdateRequest]") -> str:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.SubmitUpdate(iter(messages), timeout=10.0)
                return error_from_rpc(caught.value).reason

            async with asyncio.timeout(90.0):
                first = await wait_until_async(lambda: tasks_of(scheduler, "good#0"), 60.0)
                dead.kill()

                # good#0 answers by itself; this is a second, different answer in its name.
                async def accepted() -> bool:
                    return bool((await tasks_of(scheduler, "good#0"))[0]["done"])

                async def second_round() -> bool:
                    return (await federation()).round >= 2

                async def ended() -> bool:
                    return (await federation()).state != pb.FEDERATION_STATE_RUNNING

                await wait_until_async(accepted, 60.0)
                assert await refusal(update(first[0], 7.0)) == "ANSWERED_TWICE"
                await wait_until_async(second_round, 60.0)
                assert await refusal(update(first[0], 1.0)) == "REPLAYED"
                await wait_until_async(ended, 60.0)
            rounds = (await stub.ListRounds(pb.ListRoundsRequest(), timeout=10.0)).rounds
            return await federation(), list(rounds)

    end, rounds = asyncio.run(play())
    assert end.state == pb.FEDERATION_STATE_FINISHED, end.reason
    first = min(rounds, key=lambda each: each.number)
    said = {(update.node_id, update.refusal) for each in rounds for update in each.updates}
    assert ("dead", "NO_ANSWER") in said or ("dead", "TASK_FAILED") in said
    assert {("good#0", "ANSWERED_TWICE"), ("good#0", "REPLAYED")} <= said
    assert ("late", "NO_ANSWER") in {(update.node_id, update.refusal) for update in first.updates}
    assert 4.0 <= first.seconds < 6.0
    liars = [update for each in rounds for update in each.updates if update.node_id == "liar"]
    assert all(update.samples == 10**12 and update.counted_samples == 20 for update in liars)
    assert all(update.notes == ["SAMPLES_CAPPED", "NORM_CLIPPED"] for update in liars)
    # Three honest nodes of 10 samples and one liar that counts as 20: (3 · 10 · 1 + 20 · 3) / 50.
    assert {round(update.node_weight, 6) for update in first.updates if not update.refusal} == {0.2, 0.4}


@pytest.mark.slow
def test_a_coordinator_killed_mid_round_ends_with_the_same_model_as_one_that_was_not(fleet, tmp_path):
    """Kills the learner with -9 in every round; the nodes and the scheduler stay up."""
    fleet.scheduler()
    learner = fleet.learner(mode="federation")
    kinds = '["federated_fit","federated_evaluate"]'
    fleet.actor(0, **{"actor_id": "n", "virtual_nodes": "6", "kinds": kinds})
    configuration = {
        "task": "digits",
        "settings": {"nodes": 6},
        "rounds": 6,
        "quorum": 6,
        "selection": {"min_nodes": 6, "virtual_nodes": 6, "virtual_voters": True},
        "server": {"optimiser": "fedavgm"},
    }

    def call(method: str, request: Any) -> Any:
        async def ask() -> Any:
            async with open_channel(fleet.learner_address) as channel:
                return await getattr(FederationServiceStub(channel), method)(request, timeout=30.0, wait_for_ready=True)

        return asyncio.run(ask())

    def start(name: str) -> None:
        request = pb.StartFederationRequest(federation_id=name, configuration=struct_to_proto(configuration))
        call("StartFederation", request)

    def found(name: str) -> Any:
        return call("GetFederation", pb.GetFederationRequest(federation_id=name)).federation

    def reached(number: int) -> bool:
        return bool(found("killed").round >= number)

    start("whole")
    wait_until(lambda: found("whole").state == pb.FEDERATION_STATE_FINISHED, 90.0)
    start("killed")
    for number in range(1, 6):
        wait_until(partial(reached, number), 60.0)
        learner.kill()
        learner = fleet.learner(mode="federation")
    wait_until(lambda: found("killed").state == pb.FEDERATION_STATE_FINISHED, 90.0)
    assert found("killed").reason == "all 6 rounds are done"

    def numbers(name: str) -> Any:
        path = next((fleet.run_dir / "federations" / name / "models").glob("v00000007*"))
        data = path.read_bytes()
        return data[8 + int.from_bytes(data[:8], "little") :]

    assert numbers("killed") == numbers("whole")
