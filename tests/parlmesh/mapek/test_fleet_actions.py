"""Actions through the scheduler, the learner and a cluster, each over its own protocol."""

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from parlmesh.client import ActorState, PARLController
from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.mapek.fleet_actions import PauseRun, Scale, fleet_actions
from parlmesh.testing import wait_until_async
from parlmesh.v1 import training_service_pb2 as pb
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceServicer, add_TrainingServiceServicer_to_server

SECONDS = 60.0


@pytest.fixture
async def controller() -> AsyncIterator[PARLController]:
    async with PARLController() as found:
        await found.initialize(2, actor={"virtual_nodes": 1}, processes=2)
        yield found


async def states(controller: PARLController) -> dict[str, ActorState]:
    return {each.actor_id: each.state for each in await controller.list_actors()}


async def test_a_node_in_quarantine_gets_nothing_until_it_is_undone_and_a_drained_one_leaves(
    controller: PARLController,
) -> None:
    sick, well = sorted(await states(controller))
    node = next(each.node_id for each in await controller.list_actors() if each.actor_id == sick)
    actions = fleet_actions(controller)
    before = await actions["quarantine"].before(node, {"reason": "its disk is full"})
    assert before is not None
    done = await actions["quarantine"].do(node, {}, before)
    assert done == f"{node} is in quarantine: its disk is full"
    with pytest.raises(FailedPrecondition, match="already in quarantine: its disk is full"):
        await actions["quarantine"].before(node, {})
    tasks = [await controller.submit_task("echo", {"n": n}) for n in range(10)]
    outcomes = [await controller.result(task, timeout=SECONDS) for task in tasks]
    assert {outcome.actor_id for outcome in outcomes} == {well}
    for reason, said in (
        ("another", "stays in quarantine for another reason"),
        ("its disk is full", "gets tasks again"),
    ):
        assert said in await actions["quarantine"].undo(node, {}, {"reason": reason})
    assert (await states(controller))[sick] is ActorState.READY
    assert await actions["drain"].do(node, {}, None) == f"draining {sick}"
    await wait_until_async(lambda: _is_gone(controller, sick), SECONDS)
    with pytest.raises(FailedPrecondition, match=f"no actor at all on {node}"):
        await actions["drain"].do(node, {}, None)


async def _is_gone(controller: PARLController, actor_id: str) -> bool:
    return (await states(controller)).get(actor_id, ActorState.LOST) is ActorState.LOST


async def test_a_run_is_paused_and_goes_on_by_the_learner() -> None:
    learner = Learner()
    server = grpc.aio.server()
    add_TrainingServiceServicer_to_server(learner, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    controller = PARLController(learner=f"127.0.0.1:{port}")
    try:
        action = PauseRun(controller)
        assert await action.before("node-3", {"run": "cartpole"}) == {}
        assert await action.do("node-3", {"run": "cartpole"}, {}) == "run cartpole is paused"
        assert await action.undo("node-3", {"run": "cartpole"}, {}) == "the run continues"
    finally:
        await controller.close()
        await server.stop(None)
    assert learner.asked == ["pause cartpole", "resume cartpole"]


# The generated class is abstract for mypy.
_Servicer: Any = TrainingServiceServicer


class Learner(_Servicer):  # type: ignore[misc]
    """Records its requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def PauseTraining(self, request: pb.PauseTrainingRequest, context: Any) -> pb.PauseTrainingResponse:
        self.asked.append(f"pause {request.run_id}")
        return pb.PauseTrainingResponse()

    async def ResumeTraining(self, request: pb.ResumeTrainingRequest, context: Any) -> pb.ResumeTrainingResponse:
        self.asked.append(f"resume {request.run_id}")
        return pb.ResumeTrainingResponse()


async def test_a_deployment_gets_one_pod_more_within_its_limits_and_as_many_as_before() -> None:
    pytest.importorskip("kubernetes")
    from parlmesh.testing.kubernetes_api import KubernetesState, kubernetes_api
    from parlmesh.worlds.cluster.kubernetes_client import connect

    state = KubernetesState()
    state.add_node("edge-a")
    state.add_deployment("shop", "web", ["edge-a", "edge-a"])
    with kubernetes_api(state) as address:
        action = Scale(lambda parameters: connect(server=address))
        wanted = {"namespace": "shop", "deployment": "web", "most": 3}
        before = await action.before("edge-a", wanted)
        assert before == {"replicas": 2, "wanted": 3}
        assert await action.undo("edge-a", wanted, before) == "web has 2 pods already", "it was never done"
        assert await action.do("edge-a", wanted, before) == "web has 3 pods instead of 2"
        with pytest.raises(FailedPrecondition, match="web has 3 pods; 1 to 3 are allowed"):
            await action.before("edge-a", wanted)
        assert await action.undo("edge-a", wanted, before) == "web has 2 pods again, after 3"
        with pytest.raises(FailedPrecondition, match="another party has scaled it"):
            await action.undo("edge-a", wanted, {"replicas": 5, "wanted": 6})
        with pytest.raises(InvalidInput, match="needs the parameter deployment"):
            await action.before("edge-a", {})
    assert [body["spec"]["replicas"] for _, _, body in state.writes] == [3, 2]
