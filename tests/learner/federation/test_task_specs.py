import math
from typing import Any

import pytest

from learner.federation.rules.events import Evaluated
from learner.federation.rules.records import Assignment
from learner.federation.task_specs import evaluation_tasks, evaluations_in, failures_in, fit_tasks
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.virtual_nodes import nodes_of
from parlmesh.wire import payload_from_proto, payload_to_proto

CONFIG = FederationConfig(task="drift")


def assigned(nodes: list[str], number: int = 1) -> list[Assignment]:
    return [Assignment(node, index, number, number, f"{index:032x}") for index, node in enumerate(nodes, 1)]


def test_real_nodes_have_a_task_each_and_virtual_ones_share_theirs() -> None:
    asked = assigned(["b", *nodes_of("sim", 40), "a"])
    tasks = fit_tasks("f", CONFIG, 100, asked)
    assert [(task.spec.placement.node_id, len(task.nodes)) for task in tasks] == [
        ("a", 1),
        ("b", 1),
        ("sim", 32),
        ("sim", 8),
    ]
    nonces = {each.node_id: (each.number, each.nonce) for each in asked}
    found = {
        member["node_id"]: (member["number"], member["nonce"])
        for task in tasks
        for member in payload_from_proto(task.spec.payload)[0]["members"]
    }
    assert found == nonces
    assert sorted(node for task in tasks for node in task.nodes) == sorted(nonces)


def test_nodes_with_large_models_share_no_task() -> None:
    tasks = fit_tasks("f", CONFIG, 10_000_000, assigned(nodes_of("sim", 3)))
    assert [task.nodes for task in tasks] == [("sim#0",), ("sim#1",), ("sim#2",)]


def test_nodes_asked_in_different_rounds_share_no_task() -> None:
    asked = [*assigned(nodes_of("sim", 2)), *assigned(["sim#7"], number=2)]
    assert [(task.number, task.nodes) for task in fit_tasks("f", CONFIG, 10, asked)] == [
        (1, ("sim#0", "sim#1")),
        (2, ("sim#7",)),
    ]


def test_evaluations_are_grouped_the_same_way() -> None:
    (task,) = evaluation_tasks("f", CONFIG, 3, {"sim#0": 1, "sim#1": 2})
    parameters, _ = payload_from_proto(task.spec.payload)
    assert parameters["members"] == [{"node_id": "sim#0", "number": 1}, {"node_id": "sim#1", "number": 2}]
    assert (parameters["version"], task.number) == (3, 3)


def test_failures_are_those_of_the_tasks_own_nodes_and_short() -> None:
    result = payload_to_proto({"failed": {"a": "refused: NORM", "z": "not asked", "b": "x" * 10_000}})
    found = failures_in(result, ["a", "b", "c"])
    assert found == {"a": "refused: NORM", "b": "x" * 200}
    assert failures_in(payload_to_proto({"failed": 7}), ["a"]) == {"a": "its list of failures cannot be read"}
    assert failures_in(payload_to_proto({"sent": 1}), ["a"]) == {}


GOOD = {"samples": 3, "metrics": {"loss": 0.5}}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"judged": 5},
        {"judged": {"other": GOOD}},
        {"judged": {"a": None}},
        {"judged": {"a": {}}},
        {"judged": {"a": {**GOOD, "samples": "x"}}},
        {"judged": {"a": {**GOOD, "samples": math.inf}}},
        {"judged": {"a": {**GOOD, "samples": math.nan}}},
        {"judged": {"a": {**GOOD, "samples": 1.5e308}}},
        {"judged": {"a": {**GOOD, "samples": -1}}},
        {"judged": {"a": {**GOOD, "samples": 1.5}}},
        {"judged": {"a": {**GOOD, "samples": True}}},
        {"judged": {"a": {"samples": 3}}},
        {"judged": {"a": {**GOOD, "metrics": [1]}}},
        {"judged": {"a": {**GOOD, "metrics": {"loss": "x"}}}},
        {"judged": {"a": {**GOOD, "metrics": {"loss": math.inf}}}},
        {"judged": {"a": {**GOOD, "metrics": {"loss": 1.5e308}}}},
        {"judged": {"a": {**GOOD, "metrics": {f"m{k}": 1.0 for k in range(100)}}}},
    ],
)
def test_an_evaluation_that_cannot_be_costs_its_node_and_no_other(answer: dict[str, Any]) -> None:
    if isinstance(answer.get("judged"), dict):
        answer["judged"]["b"] = GOOD
    bad, other = evaluations_in(payload_to_proto(answer), ["a", "b"])
    assert bad.node_id == "a"
    assert bad.bad.startswith("BAD_ANSWER: ")
    assert bad.samples == 0
    if "judged" in answer and isinstance(answer["judged"], dict):
        assert other == Evaluated("b", 3, {"loss": 0.5})
