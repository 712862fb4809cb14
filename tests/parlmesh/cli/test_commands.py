"""The commands against real services, in this process so that each test takes milliseconds."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from typer.testing import CliRunner, Result

from parlmesh.cli.__main__ import app
from parlmesh.cli.commands.status import status
from parlmesh.cli.commands.top import _chosen
from parlmesh.cli.screen.fleet_view import FleetView
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, FleetError, InvalidInput, NotFound, Unavailable
from parlmesh.exit_codes import exit_code
from parlmesh.rpc.error_statuses import status_from_error
from parlmesh.security import SecurityConfig
from parlmesh.testing import Process, free_port, serve, wait_until
from parlmesh.testing.tasks import FakeTasks


def parlmesh(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def output(*arguments: str) -> str:
    result = parlmesh(*arguments)
    assert result.exception is None, result.output
    return result.stdout


def objects(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output(*arguments, "--json").splitlines()]


def test_a_task_submitted_with_wait_shows_its_result(scheduler: str) -> None:
    text = output("tasks", "submit", "echo", "--param", "word=hello", "--wait", "--scheduler", scheduler)
    assert "succeeded" in text
    assert '"word": "hello"' in text
    assert "ada" in text


def test_parameters_are_yaml_values_and_may_come_as_json(scheduler: str) -> None:
    arguments = ("--parameters", '{"a": [1, 2]}', "--param", "b=true", "--param", "c='7'", "--wait")
    (outcome,) = objects("tasks", "submit", "echo", *arguments, "--scheduler", scheduler)
    assert outcome["result"]["parameters"] == {"a": [1, 2], "b": True, "c": "7"}


def test_a_finished_task_is_listed_with_the_actor_that_ran_it(scheduler: str) -> None:
    output("tasks", "submit", "echo", "--id", "who-ran-it", "--wait", "--scheduler", scheduler)
    lines = output("tasks", "list", "--limit", "1000", "--scheduler", scheduler).splitlines()
    (row,) = [line.split() for line in lines if "who-ran-it" in line]
    assert row[:6] == ["who-ran-it", "echo", "normal", "succeeded", "1", "ada"]


def test_many_tasks_get_as_many_ids(scheduler: str) -> None:
    (answer,) = objects("tasks", "submit", "noop", "--count", "25", "--scheduler", scheduler)
    assert len(set(answer["task_ids"])) == 25
    outcomes = objects("tasks", "watch", *answer["task_ids"], "--scheduler", scheduler)
    assert sorted(outcome["task_id"] for outcome in outcomes) == sorted(answer["task_ids"])


def test_a_failed_task_ends_watching_with_code_1_and_its_reason(scheduler: str) -> None:
    result = parlmesh("tasks", "submit", "fail", "--attempts", "1", "--wait", "--scheduler", scheduler)
    assert result.exit_code == 1
    assert "failed" in result.stdout
    assert "HANDLER_ERROR" in result.stdout


def test_a_task_can_be_listed_explained_and_cancelled(scheduler: str) -> None:
    output("tasks", "submit", "echo", "--id", "elsewhere", "--node", "no-such-node", "--scheduler", scheduler)
    assert "no-such-node" in output("tasks", "why", "elsewhere", "--scheduler", scheduler)
    listed = objects("tasks", "list", "--state", "queued", "--kind", "echo", "--scheduler", scheduler)
    assert [task["spec"]["task_id"] for task in listed] == ["elsewhere"]
    assert "elsewhere" in output("tasks", "list", "--scheduler", scheduler)
    assert output("tasks", "cancel", "elsewhere", "--scheduler", scheduler) == "elsewhere\n"
    assert "had ended" in output("tasks", "cancel", "elsewhere", "--scheduler", scheduler)
    assert objects("tasks", "cancel", "elsewhere", "--scheduler", scheduler) == [{"cancelled_task_ids": []}]
    (told,) = objects("tasks", "why", "elsewhere", "--scheduler", scheduler)
    assert "cancelled" in told["explanation"]
    cancelled = objects("tasks", "list", "--state", "cancelled", "--scheduler", scheduler)
    assert "elsewhere" in [task["spec"]["task_id"] for task in cancelled]


def test_listing_follows_pages_up_to_the_limit(scheduler: str) -> None:
    output("tasks", "submit", "noop", "--count", "1200", "--wait", "--scheduler", scheduler)
    listed = objects("tasks", "list", "--kind", "noop", "--limit", "1100", "--scheduler", scheduler)
    assert len({task["spec"]["task_id"] for task in listed}) == 1_100


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("tasks", "submit", "no-such-kind"), FailedPrecondition),
        (("tasks", "submit", "echo", "--after", "nobody"), InvalidInput),
        (("tasks", "why", "nobody"), NotFound),
        (("tasks", "watch", "nobody"), NotFound),
        (("actors", "pause", "nobody"), NotFound),
    ],
)
def test_a_refusal_of_the_scheduler_is_printed_in_its_own_words(
    scheduler: str, arguments: tuple[str, ...], error: type[Exception]
) -> None:
    result = parlmesh(*arguments, "--scheduler", scheduler)
    assert isinstance(result.exception, error)
    assert arguments[-1] in str(result.exception)


def test_actors_are_paused_and_resumed(scheduler: str) -> None:
    assert "paused" in output("actors", "pause", "ada", "--scheduler", scheduler)
    (known,) = objects("actors", "list", "--scheduler", scheduler)
    (paused,) = objects("actors", "pause", "--node", known["node_id"], "--scheduler", scheduler)
    assert paused["state"] == "ACTOR_STATE_PAUSED"
    (actor,) = objects("actors", "list", "--scheduler", scheduler)
    assert actor["state"] == "ACTOR_STATE_PAUSED"
    assert "ready" in output("actors", "resume", "ada", "--scheduler", scheduler)
    text = output("actors", "list", "--scheduler", scheduler)
    assert "ada" in text
    assert "echo" in text


def test_status_shows_run_queue_and_actors(scheduler: str, learner: str) -> None:
    text = output("status", "--scheduler", scheduler, "--learner", learner)
    for word in ("one", "1,000,000,000", "tasks/s", "ada"):
        assert word in text
    kinds = objects("status", "--scheduler", scheduler, "--learner", learner)
    assert kinds[0]["run_id"] == "one"
    assert kinds[1]["ready_workers"] == 1
    assert kinds[2]["actor_id"] == "ada"


def test_a_training_is_paused_resumed_followed_and_stopped(scheduler: str, learner: str) -> None:
    assert output("train", "pause", "--run", "one", "--learner", learner).startswith("one is paused at ")
    refused = parlmesh("train", "pause", "--run", "one", "--learner", learner)
    assert isinstance(refused.exception, FailedPrecondition)
    assert "paused" in output("status", "--scheduler", scheduler, "--learner", learner)
    assert output("train", "resume", "--run", "one", "--learner", learner).startswith("one is running at ")
    unknown = parlmesh("train", "stop", "--run", "nobody", "--learner", learner)
    assert isinstance(unknown.exception, NotFound)
    said = output("train", "stop", "--run", "one", "--learner", learner)
    assert said.startswith(("one is stopping at ", "one is stopped at "))
    assert "stopped" in output("top", "--plain", "--run", "one", "--scheduler", scheduler, "--learner", learner)


SHORT = ("--steps", "200", "--no-goal", "--set", "hidden=[8]", "--set", "num_envs=4", "--set", "ppo.epochs=1")


def test_a_run_is_created_started_and_leaves_models_to_promote_export_and_delete(learner: str, tmp_path: Path) -> None:
    at = ("--learner", learner)
    assert output("train", "create", "--run", "two", *SHORT, *at) == "two is created at 0 steps\n"
    assert output("train", "start", "--run", "two", *at).startswith("two is running")
    wait_until(lambda: objects("train", "list", *at)[0]["state"] == "TRAINING_STATE_FINISHED", 60)
    assert objects("train", "list", *at)[0]["configuration"]["ppo"]["epochs"] == 1
    assert "finished" in output("train", "list", *at)
    (model,) = objects("models", "list", "--run", "two", *at)
    version = str(model["version"])
    assert model["metadata"]["environment"] == "CartPole-v1"
    assert f"sha256: {model['digest']}" in output("models", "show", "--run", "two", *at)
    assert "CartPole-v1" in output("models", "list", *at)
    assert f"version {version} of two is promoted" in output("models", "promote", version, "--run", "two", *at)
    assert "evaluation_return: " in output("models", "show", "--run", "two", *at)
    for suffix in ("safetensors", "onnx"):
        file = tmp_path / f"policy.{suffix}"
        assert f"{file}: " in output("models", "export", str(file), "--run", "two", *at)
        assert file.stat().st_size > 500
    refused = parlmesh("models", "delete", version, "--run", "two", *at)
    assert isinstance(refused.exception, FailedPrecondition)
    assert "is promoted" in str(refused.exception)
    odd = parlmesh("models", "export", "policy.pt", *at)
    assert isinstance(odd.exception, InvalidInput)


@pytest.mark.parametrize(
    ("assignment", "sentence"), [("x", "--set takes key=value, got 'x'"), ("num_envs=0", "num_envs must be >= 1")]
)
def test_a_run_that_cannot_work_is_refused_by_name(learner: str, assignment: str, sentence: str) -> None:
    result = parlmesh("train", "create", "--set", assignment, "--learner", learner)
    assert sentence in str(result.exception)


def test_a_scheduler_is_not_mistaken_for_a_learner(scheduler: str) -> None:
    result = parlmesh("train", "pause", "--learner", scheduler)
    assert f"the server at {scheduler} is not a learner" in str(result.exception)


def test_a_fleet_without_a_learner_shows_its_queue_and_actors(scheduler: str) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    result = parlmesh("status", "--scheduler", scheduler, "--learner", nobody)
    assert result.exit_code == 1  # its address was given
    assert "ada" in result.stdout
    assert f"parlmesh: no learner answers at {nobody}" in result.stderr


def test_a_learner_alone_shows_its_runs(learner: str) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    result = parlmesh("status", "--scheduler", nobody, "--learner", learner)
    assert result.exit_code == 1
    assert "1,000,000,000" in result.stdout
    assert f"parlmesh: no scheduler answers at {nobody}" in result.stderr


@pytest.mark.parametrize("service", ["scheduler", "learner"])
def test_a_service_that_nobody_asked_for_may_be_away(
    service: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"scheduler": "learner", "learner": "scheduler"}[service]
    nobody = f"127.0.0.1:{free_port()}"
    monkeypatch.setattr(status, "__defaults__", (nobody, nobody, False))  # a fleet may use the default ports
    address = request.getfixturevalue(service)
    result = CliRunner().invoke(app, ["status", f"--{service}", address], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert f"parlmesh: no {other} answers at" in result.stderr
    variable = f"PARLMESH_{other.upper()}_ADDRESS"
    named = CliRunner().invoke(app, ["status", f"--{service}", address], env={"COLUMNS": "200", variable: nobody})
    assert named.exit_code == 1


def test_a_learner_of_federations_shows_them_instead_of_runs(scheduler: str, tmp_path: Path) -> None:
    settings = ("mode", "federation"), ("scheduler", scheduler), ("run_dir", str(tmp_path / "run"))
    arguments = [part for key, value in settings for part in ("--set", f"{key}={value}")]
    with Process("learner", "--set", "metrics.port=null", "--set", "listen.port=0", *arguments) as process:
        at = ("--learner", f"127.0.0.1:{process.wait_for('serving', 60)['port']}")
        text = output("status", "--scheduler", scheduler, *at)
        assert "no federation yet" in text
        assert "ada" in text
        refused = parlmesh("train", "list", *at)
        assert "a learner with mode=federation (`parlmesh federation status`)" in str(refused.exception)
        view = FleetView("no run")
        assert asyncio.run(_chosen(view, at[1], scheduler, SecurityConfig(), "")) is None
        assert (view.phase, list(view.notes)) == ("federation", ["no federation yet"])


def test_top_follows_the_newest_run_that_trains_and_names_the_others(scheduler: str, learner: str) -> None:
    at = ("--scheduler", scheduler, "--learner", learner)
    output("train", "create", "--run", "waits", *SHORT, *at[2:])
    output("train", "create", "--run", "trains", *SHORT, "--start", *at[2:])
    text = output("top", "--plain", *at)
    assert "finished" in text
    assert "--run ID shows another: " in text
    assert "waits" in text


def test_json_of_a_status_says_what_each_object_is(scheduler: str, learner: str) -> None:
    found = objects("status", "--scheduler", scheduler, "--learner", learner)
    assert {each["type"] for each in found} == {"training", "statistics", "actor"}


def test_a_reason_of_the_server_is_not_mistaken_for_silence() -> None:
    class Full:
        """A scheduler whose disk is full."""

        async def submit(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            error = Unavailable("the journal cannot be written: No space left on device", reason="STORE_UNAVAILABLE")
            status = status_from_error(error)
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, status.message, (("grpc-status-details-bin", status.SerializeToString()),)
            )
            raise AssertionError

    async def serve_and_ask() -> Result:
        server = grpc.aio.server()
        method: Any = grpc.unary_unary_rpc_method_handler(Full().submit)
        handlers = {"SubmitTasks": method}
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("parlmesh.v1.SchedulerService", handlers)]
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            return await asyncio.to_thread(parlmesh, "tasks", "submit", "noop", "--scheduler", f"127.0.0.1:{port}")
        finally:
            await server.stop(None)

    result = asyncio.run(serve_and_ask())
    assert str(result.exception) == "the journal cannot be written: No space left on device"


def test_a_wrong_authority_is_named_and_not_mistaken_for_silence(tmp_path: Path) -> None:
    output("certs", "ca", "--folder", str(tmp_path / "ours"))
    output("certs", "ca", "--folder", str(tmp_path / "theirs"))
    output("certs", "server", "scheduler", "--folder", str(tmp_path / "ours"))
    settings = (
        ("store.kind", "memory"),
        ("security.certificate", str(tmp_path / "ours" / "scheduler.crt")),
        ("security.key", str(tmp_path / "ours" / "scheduler.key")),
        ("security.ca", str(tmp_path / "ours" / "ca.crt")),
    )
    arguments = [part for key, value in settings for part in ("--set", f"{key}={value}")]
    with Process("scheduler", "--set", "metrics.port=null", "--set", "listen.port=0", *arguments) as process:
        address = f"127.0.0.1:{process.wait_for('serving', 60)['port']}"
        result = parlmesh("--ca", str(tmp_path / "theirs" / "ca.crt"), "actors", "list", "--scheduler", address)
    assert f"the scheduler at {address} cannot be trusted: its certificate is not from the authority" in str(
        result.exception
    )
    assert isinstance(result.exception, FleetError)
    assert exit_code(result.exception) == 4


def test_a_certificate_for_another_name_is_named_and_not_mistaken_for_silence(tmp_path: Path) -> None:
    output("certs", "ca", "--folder", str(tmp_path))
    output("certs", "server", "scheduler", "--folder", str(tmp_path), "--dns", "elsewhere.example")
    files: dict[str, Any] = {"certificate": tmp_path / "scheduler.crt", "key": tmp_path / "scheduler.key"}
    security = SecurityConfig(ca=tmp_path / "ca.crt", **files)

    async def serve_and_ask() -> tuple[str, Result]:
        async with serve([FakeTasks().service], security) as address:
            arguments = ("--ca", str(tmp_path / "ca.crt"), "actors", "list", "--scheduler", address)
            return address, await asyncio.to_thread(parlmesh, *arguments)

    address, result = asyncio.run(serve_and_ask())
    assert str(result.exception) == (
        f"the scheduler at {address} cannot be trusted: its certificate is for another name; use an address that the"
        " certificate names"
    )
    assert isinstance(result.exception, FleetError)
    assert exit_code(result.exception) == 4


def test_doctor_sees_a_running_fleet(scheduler: str, learner: str) -> None:
    text = output("doctor", "--scheduler", scheduler, "--learner", learner)
    assert f"serves at {scheduler}" in text
    assert f"serves at {learner}" in text


def test_a_wait_ends_at_its_deadline_and_names_what_has_not_ended(scheduler: str) -> None:
    arguments = ("--id", "stuck", "--node", "no-such-node", "--wait", "--timeout", "0.2")
    result = parlmesh("tasks", "submit", "echo", *arguments, "--scheduler", scheduler)
    assert isinstance(result.exception, DeadlineExceeded)
    assert str(result.exception).startswith("1 of 1 tasks had not ended within 0.2 s; `parlmesh tasks why stuck`")
    output("tasks", "cancel", "stuck", "--scheduler", scheduler)


def test_waiting_for_tasks_survives_a_killed_scheduler_that_comes_back(tmp_path: Path) -> None:
    port = free_port()
    settings = (f"listen.port={port}", "metrics.port=null", f"store.path={tmp_path / 's.sqlite'}")
    arguments = [part for each in settings for part in ("--set", each)]
    address = f"127.0.0.1:{port}"
    waiting = [sys.executable, "-m", "parlmesh.cli", "tasks", "submit", "echo", "--wait", "--json"]
    with Process("scheduler", *arguments) as first:
        first.wait_for("serving", 60)
        actor = ("--set", f"scheduler={address}", "--set", "metrics.port=null")
        with Process("actor", *actor) as known:
            known.wait_for("connected", 60)
        # No actor can run it.
        pipe = subprocess.PIPE
        with subprocess.Popen([*waiting, "--scheduler", address], stdout=pipe, stderr=pipe, text=True) as command:
            wait_until(lambda: objects("tasks", "list", "--kind", "echo", "--scheduler", address) != [], 60)
            first.kill()
            assert command.stderr is not None
            assert "accepted tasks are kept, still waiting" in command.stderr.readline()
            with Process("scheduler", *arguments) as second, Process("actor", *actor):
                second.wait_for("serving", 60)
                told, said = command.communicate(timeout=60)
            assert (command.returncode, said) == (0, "")
            assert json.loads(told)["state"] == "TASK_STATE_SUCCEEDED"


async def test_status_of_a_standby_scheduler_says_so() -> None:
    class StandsBy(FakeTasks):
        async def GetStatistics(self, request: Any, context: Any) -> Any:
            raise Unavailable("this scheduler stands by and none leads yet", reason="NOT_LEADER", leader="")

    async with serve([StandsBy().service]) as address:
        addresses = ("--scheduler", address, "--learner", f"127.0.0.1:{free_port()}")
        result = await asyncio.to_thread(parlmesh, "status", *addresses)
    assert isinstance(result.exception, Unavailable)
    assert "stands by" in result.exception.message


def test_top_for_programs_reports_until_the_run_has_ended(scheduler: str, tmp_path: Path) -> None:
    settings = ("mode=serial", "run_id=short", f"run_dir={tmp_path}", "training.step_budget=600", "training.num_envs=2")
    arguments = [part for one in ("metrics.port=null", "listen.port=0", *settings) for part in ("--set", one)]
    with Process("learner", *arguments) as process:
        learner = f"127.0.0.1:{process.wait_for('serving', 60)['port']}"
        found = objects("top", "--scheduler", scheduler, "--learner", learner)
    assert {each["type"] for each in found} == {"training", "statistics", "actor"}
    states = [each["state"] for each in found if each["type"] == "training"]
    assert states[-1] == "TRAINING_STATE_FINISHED"
    assert "TRAINING_STATE_FINISHED" not in states[:-1]


def test_the_default_goal_is_that_of_its_environment_alone(learner: str) -> None:
    at = ("--learner", learner)
    output("train", "create", "--run", "pole", *at)
    output("train", "create", "--run", "swing", "--environment", "Acrobot-v1", *at)
    goals = {each["run_id"]: each["configuration"]["goal_return"] for each in objects("train", "list", *at)}
    assert (goals["pole"], goals["swing"]) == (475.0, None)
