"""`parlmesh placement` from its files to what it prints."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from parlmesh.cli.__main__ import app
from parlmesh.environments import environment_spec
from parlmesh.errors import FleetError, InvalidInput
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.testing.kubernetes_api import KubernetesState, kubernetes_api
from parlmesh.types import Array
from parlmesh.worlds.placement.response_times import per_pod_response

CLUSTER = {
    "nodes": [{"name": name, "cpu": 8, "ram": 16000} for name in ("edge-a", "edge-b")],
    "deployments": [{"name": "web", "cpu": 1, "ram": 500, "service_rate": 50, "request_rate": 60}],
    "distance_ms": [[0.0, 30.0]],
}


@pytest.fixture
def world(tmp_path):
    file = tmp_path / "world.yaml"
    kwargs = {"cluster": CLUSTER, "episode_steps": 10}
    file.write_text(yaml.safe_dump({"training": {"environment": {"id": "parlmesh/Placement-v3", "kwargs": kwargs}}}))
    return file


def run(*words):
    return CliRunner().invoke(app, ["placement", *map(str, words)])


def test_every_baseline_is_in_the_table_best_first(world):
    answer = run("evaluate", "--config", world, "--episodes", 4, "--json")
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.output)
    assert len(found) == 5
    assert "success" in found["static"]
    table = run("evaluate", "--config", world, "--episodes", 4)
    assert "greedy-latency" in table.output


def test_a_fit_writes_a_world_that_can_be_trained_on(world, tmp_path):
    rng = np.random.default_rng(0)
    load = rng.uniform(5, 60, 200)
    latency = 1000 * per_pod_response(load, np.full(200, 35.0), np.full(200, 2)) + 12
    rows = "\n".join(f"{n},web,2,{load[n]},{latency[n]}" for n in range(200))
    (tmp_path / "m.csv").write_text(f"time,deployment,replicas,requests_per_second,latency_ms\n{rows}\n")
    answer = run("fit", tmp_path / "fitted.yaml", "--config", world, "--csv", tmp_path / "m.csv", "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.output)["web"]["service_rate"] == pytest.approx(35, rel=0.05)
    again = run("evaluate", "--config", tmp_path / "fitted.yaml", "--episodes", 2, "--json")
    assert again.exit_code == 0, again.output
    kept = yaml.safe_load((tmp_path / "fitted.yaml").read_text())["training"]["environment"]["kwargs"]
    assert kept["episode_steps"] == 10
    assert kept["cluster"]["deployments"][0]["request_rate"] == pytest.approx(load.mean(), rel=1e-3)


def test_metrics_of_other_deployments_are_refused(world, tmp_path):
    (tmp_path / "m.csv").write_text("deployment,replicas,requests_per_second,latency_ms\nshop,1,1,1\n")
    answer = run("fit", tmp_path / "fitted.yaml", "--config", world, "--csv", tmp_path / "m.csv")
    assert isinstance(answer.exception, FleetError)
    assert "no metrics for web; found shop" in answer.exception.message
    assert not (tmp_path / "fitted.yaml").exists()


def test_a_fit_that_explains_nothing_warns(world, tmp_path):
    rows = "web,2,10,50\n" * 20
    (tmp_path / "m.csv").write_text(f"deployment,replicas,requests_per_second,latency_ms\n{rows}")
    answer = run("fit", tmp_path / "fitted.yaml", "--config", world, "--csv", tmp_path / "m.csv", "--json")
    assert answer.exit_code == 0
    assert "the latency of web does not follow its load" in answer.stderr


def saved_policy(file, **kwargs):
    environment = environment_spec({"id": "parlmesh/Placement-v3", "kwargs": kwargs})
    spec = PolicySpec.for_environment(environment, hidden=(4,))
    sizes = spec.layer_sizes
    weights: dict[str, Array] = {}
    for head, outputs in (("policy", sizes[-1]), ("value", 1)):
        for layer, (inputs, width) in enumerate(pairwise((*sizes[:-1], outputs))):
            weights[f"{head}.{layer}.weight"] = np.zeros((width, inputs), np.float32)
            weights[f"{head}.{layer}.bias"] = np.zeros(width, np.float32)
    file.write_bytes(pack_policy(spec, weights))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda file: None, "cannot be read: No such file"),
        (lambda file: file.mkdir(), "cannot be read: Is a directory"),
        (lambda file: file.write_bytes(b"nothing of the kind"), "not a safetensors file"),
        (lambda file: saved_policy(file, nodes=8), "choices of 25+25+25+25, this one .* choices of 7;"),
    ],
)
def test_an_unusable_model_or_a_wrong_input_gives_one_sentence(world, tmp_path, made, said):
    file = tmp_path / "policy.safetensors"
    made(file)
    answer = run("evaluate", "--config", world, "--model", file, "--episodes", 1)
    assert isinstance(answer.exception, InvalidInput)
    assert re.search(said.replace("+", r"\+"), answer.exception.message)
    assert "\n" not in answer.exception.message


def test_a_recommendation_names_changes_and_latency_and_touches_nothing(world, tmp_path):
    pytest.importorskip("kubernetes")
    state = KubernetesState()
    state.add_node("edge-a")
    state.add_node("edge-b")
    state.add_deployment("shop", "web", ["edge-b", "edge-b"])
    state.metrics = {"latency": {"web": 80.0}, "load": {"web": 95.0}}
    with kubernetes_api(state) as address:
        live = {"namespace": "shop", "server": address, "prometheus": address}
        live |= {"latency_query": "latency", "load_query": "load", "log": str(tmp_path / "w.jsonl")}
        (tmp_path / "live.yaml").write_text(yaml.safe_dump(live))
        words = ("recommend", "--live", tmp_path / "live.yaml", "--config", world, "--baseline", "greedy-latency")
        answer = run(*words, "--json")
        shown = run(*words)
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.output)
    assert found["measured_ms"] == pytest.approx(80.0)
    assert any(change["node"] == "edge-a" and change["to"] > change["from"] for change in found["changes"])
    assert found["predicted_then_ms"] < found["predicted_now_ms"]
    assert "web on edge-a" in shown.output
    assert {method for method, _ in state.requests} == {"GET"}
    assert not (tmp_path / "w.jsonl").exists()
