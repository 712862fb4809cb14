"""The commands against real services, in this process so that each test takes milliseconds."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from parlmesh.cli.__main__ import app
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, InvalidInput, NotFound
from parlmesh.testing import wait_until


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
def test_what_the_scheduler_refuses_comes_out_as_its_own_sentence(
    scheduler: str, arguments: tuple[str, ...], error: type[Exception]
) -> None:
    result = parlmesh(*arguments, "--scheduler", scheduler)
    assert isinstance(result.exception, error)
    assert arguments[-1] in str(result.exception)


def test_actors_are_paused_and_resumed(scheduler: str) -> None:
    assert "paused" in output("actors", "pause", "ada", "--scheduler", scheduler)
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
    output("train", "stop", "--run", "one", "--learner", learner)
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
    version = model["version"]
    assert model["metadata"]["environment"] == "CartPole-v1"
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


def test_a_scheduler_is_not_taken_for_a_learner(scheduler: str) -> None:
    result = parlmesh("train", "pause", "--learner", scheduler)
    assert f"what answers at {scheduler} is no learner" in str(result.exception)


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
