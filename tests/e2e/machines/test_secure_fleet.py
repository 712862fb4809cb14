"""A whole fleet under TLS, its identities proven by certificate or token, and strangers that must stay out."""

import grpc
import pytest
from typer.testing import CliRunner

from parlmesh.cli.__main__ import app
from parlmesh.rpc import open_channel
from parlmesh.security import SecurityConfig
from parlmesh.testing import wait_until
from parlmesh.v1.experience_service_pb2 import Trajectory, UploadTrajectoriesRequest
from parlmesh.v1.experience_service_pb2_grpc import ExperienceServiceStub
from parlmesh.v1.policy_service_pb2 import GetPolicyRequest
from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceStub
from parlmesh.v1.scheduler_service_pb2 import GetStatisticsRequest, SubmitTasksRequest
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from parlmesh.v1.task_pb2 import TaskSpec
from parlmesh.v1.training_service_pb2 import GetTrainingRequest, StopTrainingRequest
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub

pytestmark = pytest.mark.e2e

WAIT = 60.0
ENDLESS = {"training.step_budget": 10**9, "training.goal_return": "null", "training.num_envs": 8}


def certs(folder, *arguments):
    result = CliRunner().invoke(app, ["certs", *arguments, "--folder", str(folder)])
    assert result.exit_code == 0, result.output


def identity(folder, name):
    return {"ca": folder / "ca.crt", "certificate": folder / f"{name}.crt", "key": folder / f"{name}.key"}


def settings(section):
    return {f"security.{name}": value for name, value in section.items()}


@pytest.fixture
def folder(fleet):
    """An authority, certificates of servers and nodes, and tokens for everybody else."""
    folder = fleet.folder / "certs"
    certs(folder, "ca")
    certs(folder, "server", "scheduler", "--ip", "127.0.0.1")
    certs(folder, "server", "learner", "--ip", "127.0.0.1", "--role", "operator")
    certs(folder, "server", "relay", "--ip", "127.0.0.1", "--role", "reader")
    certs(folder, "node", "actor-0")
    certs(folder, "token", "grafana", "--role", "reader")
    return folder


@pytest.fixture
def secure(fleet, folder):
    """The running fleet: its processes by name."""
    tokens = {"security.tokens": folder / "tokens.yaml"}
    scheduler = fleet.scheduler(**settings(identity(folder, "scheduler")), **tokens)
    learner = fleet.learner(**ENDLESS, **settings(identity(folder, "learner")), **tokens)
    relay = fleet.relay(**settings(identity(folder, "relay")), **tokens)
    actor = fleet.actor(relay=fleet.relay_address, **settings(identity(folder, "actor-0")))
    return {"scheduler": scheduler, "learner": learner, "relay": relay, "actor": actor}


def client(stub, address, **section):
    return stub(open_channel(address, SecurityConfig(**section)))


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code().name


async def one_trajectory():
    yield UploadTrajectoriesRequest(trajectory=Trajectory(run_id="run", actor_id="x", sequence=1))


async def test_a_fleet_under_tls_trains_and_refuses_everybody_else(fleet, folder, secure):
    operator, actor = identity(folder, "learner"), identity(folder, "actor-0")
    trainings = client(TrainingServiceStub, fleet.learner_address, **operator)
    watch = trainings.GetTraining
    training = (await watch(GetTrainingRequest(), timeout=WAIT, wait_for_ready=True)).training
    while training.progress.policy_version < 5:
        training = (await watch(GetTrainingRequest(), timeout=WAIT)).training

    others = fleet.folder / "others"
    certs(others, "ca")
    certs(others, "node", "actor-0", "--role", "operator")
    stranger = {**identity(others, "actor-0"), "ca": folder / "ca.crt"}
    submit = SubmitTasksRequest(tasks=[TaskSpec(kind="noop")])
    nobody = client(SchedulerServiceStub, fleet.scheduler_address, ca=folder / "ca.crt")
    assert await refusal(nobody.SubmitTasks(submit, timeout=WAIT)) == "UNAUTHENTICATED"
    foreign = client(SchedulerServiceStub, fleet.scheduler_address, **stranger)
    assert await refusal(foreign.SubmitTasks(submit, timeout=WAIT)) == "UNAUTHENTICATED"
    guesser = client(SchedulerServiceStub, fleet.scheduler_address, ca=folder / "ca.crt", token="guess" * 10)
    assert await refusal(guesser.SubmitTasks(submit, timeout=WAIT)) == "UNAUTHENTICATED"
    climber = client(SchedulerServiceStub, fleet.scheduler_address, **actor)
    assert await refusal(climber.SubmitTasks(submit, timeout=WAIT)) == "PERMISSION_DENIED"
    stopper = client(TrainingServiceStub, fleet.learner_address, **actor)
    assert await refusal(stopper.StopTraining(StopTrainingRequest(run_id="run"), timeout=WAIT)) == "PERMISSION_DENIED"
    uploads = client(ExperienceServiceStub, fleet.learner_address, ca=folder / "ca.crt")
    assert await refusal(uploads.UploadTrajectories(one_trajectory(), timeout=WAIT).read()) == "UNAUTHENTICATED"

    policies = client(PolicyServiceStub, fleet.relay_address, ca=folder / "ca.crt")
    assert await refusal(policies.GetPolicy(GetPolicyRequest(), timeout=WAIT).read()) == "UNAUTHENTICATED"
    policies = client(PolicyServiceStub, fleet.relay_address, **actor)
    assert await refusal(policies.GetPolicy(GetPolicyRequest(), timeout=WAIT).read()) == "INVALID_ARGUMENT"

    reader = {"ca": folder / "ca.crt", "token_file": folder / "grafana.token"}
    statistics = client(SchedulerServiceStub, fleet.scheduler_address, **reader)
    assert (await statistics.GetStatistics(GetStatisticsRequest(), timeout=WAIT)).ready_workers == 1
    assert await refusal(statistics.SubmitTasks(submit, timeout=WAIT)) == "PERMISSION_DENIED"

    def refused(name):
        return [
            (line["method"].rsplit("/", 1)[1], line.get("identity")) for line in secure[name].events("call_refused")
        ]

    wait_until(lambda: len(refused("scheduler")) >= 5 and len(refused("learner")) >= 2, WAIT)
    assert [method for method, _ in refused("scheduler")] == ["SubmitTasks"] * 5
    assert refused("scheduler")[3][1] == "actor actor-0"
    assert [method for method, _ in refused("learner")] == ["StopTraining", "UploadTrajectories"]
    assert not secure["actor"].events("relay_left"), "policies came from the relay"
    assert not [line for process in secure.values() for line in process.lines if "guess" in line]
    after = (await watch(GetTrainingRequest(), timeout=WAIT)).training.progress
    assert after.policy_version >= 5
    assert not dict(after.dropped_trajectories), "what nobody may send is not even counted"
