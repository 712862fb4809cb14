"""A client that shares no code with us: buf speaks gRPC and reflection, as grpcurl does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

SMALL = {"training.num_envs": 4, "training.trajectory_steps": 8, "training.hidden": "[8]"}


def buf_curl(address, *arguments):
    """As `grpcurl -plaintext`: the schema comes from the server's reflection alone."""
    buf = shutil.which("buf", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert buf is not None, "buf is installed by `make setup` (PyPI's buf-bin)"
    method, *rest = arguments
    return subprocess.run(
        [buf, "curl", "--protocol", "grpc", "--http2-prior-knowledge", *rest, f"http://{address}{method}"],
        capture_output=True,
        text=True,
        timeout=30,
        cwd="/",
    )


def call(address, method, **request):
    answer = buf_curl(address, f"/{method}", "--data", json.dumps(request))
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def methods(address):
    listed = buf_curl(address, "", "--list-methods")
    assert listed.returncode == 0, listed.stderr
    return set(listed.stdout.split())


def test_a_foreign_client_lists_and_calls_the_scheduler(fleet):
    fleet.scheduler()
    address = fleet.scheduler_address
    assert {
        "parlmesh.v1.SchedulerService/SubmitTasks",
        "parlmesh.v1.SchedulerService/ExplainTask",
        "parlmesh.v1.FleetService/Connect",
        "grpc.health.v1.Health/Check",
    } <= methods(address)
    assert call(address, "grpc.health.v1.Health/Check") == {"status": "SERVING"}
    fleet.actor(learner="127.0.0.1:1")
    submitted = call(
        address,
        "parlmesh.v1.SchedulerService/SubmitTasks",
        tasks=[{"task_id": "by-hand", "kind": "echo", "payload": {"parameters": {"hello": ["mesh", 1.5]}}}],
    )
    assert submitted == {"taskIds": ["by-hand"]}
    (outcome,) = call(address, "parlmesh.v1.SchedulerService/WatchTasks", task_ids=["by-hand"])["outcomes"]
    assert outcome["state"] == "TASK_STATE_SUCCEEDED"
    assert outcome["result"]["parameters"] == {"hello": ["mesh", 1.5]}
    (actor,) = call(address, "parlmesh.v1.SchedulerService/ListActors")["actors"]
    assert (actor["actorId"], actor["state"]) == ("actor-0", "ACTOR_STATE_READY")


def test_a_foreign_client_lists_and_calls_the_learner(fleet):
    fleet.learner(**SMALL, mode="serial")
    address = fleet.learner_address
    assert {
        "parlmesh.v1.PolicyService/GetPolicy",
        "parlmesh.v1.ExperienceService/UploadTrajectories",
        "parlmesh.v1.TrainingService/GetTraining",
        "parlmesh.v1.ModelService/ListModels",
        "parlmesh.v1.MetricsService/QueryMetrics",
        "grpc.health.v1.Health/Check",
    } <= methods(address)
    assert call(address, "grpc.health.v1.Health/Check", service="parlmesh.v1.PolicyService") == {"status": "SERVING"}
    training = call(address, "parlmesh.v1.TrainingService/GetTraining")["training"]
    assert training["runId"] == "run"
    assert training["configuration"]["environment"]["id"] == "CartPole-v1"
    described = {"environment": {"id": "Acrobot-v1"}, "step_budget": 1000, "goal_return": None}
    created = call(address, "parlmesh.v1.TrainingService/CreateTraining", run_id="by-hand", configuration=described)
    assert created["training"]["state"] == "TRAINING_STATE_CREATED"
    stopped = call(address, "parlmesh.v1.TrainingService/StopTraining", run_id="by-hand")["training"]
    assert (stopped["state"], stopped["reason"]) == ("TRAINING_STATE_STOPPED", "stopped on request")
    listed = call(address, "parlmesh.v1.TrainingService/ListTrainings")["trainings"]
    assert [each["runId"] for each in listed] == ["by-hand", "run"]
    assert call(address, "parlmesh.v1.ModelService/ListModels", run_id="by-hand") == {}
    curves = call(address, "parlmesh.v1.MetricsService/QueryMetrics", run_id="run", names=["loss/policy"], max_points=2)
    assert curves["series"][0]["name"] == "loss/policy"


@pytest.mark.parametrize(
    ("method", "request_", "code", "sentence"),
    [
        ("parlmesh.v1.SchedulerService/GetTask", {"task_id": "nobody"}, "not_found", "nobody"),
        ("parlmesh.v1.SchedulerService/SubmitTasks", {"tasks": [{"kind": ""}]}, "invalid_argument", "kind"),
    ],
)
def test_a_foreign_client_reads_the_error_in_one_sentence(fleet, method, request_, code, sentence):
    fleet.scheduler()
    answer = buf_curl(fleet.scheduler_address, f"/{method}", "--data", json.dumps(request_))
    assert answer.returncode != 0
    error = json.loads(answer.stderr)
    assert error["code"] == code
    assert sentence in error["message"]
