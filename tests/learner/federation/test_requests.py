from learner.federation.records import Assignment
from learner.federation.requests import evaluation_tasks, failures_in, fit_tasks, judgements_in
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


def test_results_of_any_shape_can_be_read() -> None:
    assert failures_in(payload_to_proto({"failed": {"a": "refused: NORM"}})) == {"a": "refused: NORM"}
    assert failures_in(payload_to_proto({"sent": 2})) == failures_in(payload_to_proto({"failed": 3})) == {}
    judged = {"a": {"samples": 2, "metrics": {"loss": 0.5}}, "b": 1}
    assert judgements_in(payload_to_proto({"judged": judged})) == {"a": (2, {"loss": 0.5})}
    assert judgements_in(payload_to_proto({"judged": None})) == {}
