"""The adapter against an API server that speaks real HTTP."""

import json

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("kubernetes")

from parlmesh.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidInput,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from parlmesh.testing.kubernetes_api import Fault, KubernetesState, kubernetes_api
from parlmesh.worlds.cluster.kubernetes_client import connect
from parlmesh.worlds.cluster.live_environment import LiveCluster, LiveEnv
from parlmesh.worlds.cluster.settings import LiveConfig

SPACE = "shop"
NODES = ("edge-a", "edge-b", "edge-c")
WORLD = {
    "cluster": {
        "nodes": [{"name": name, "cpu": 8, "ram": 16000, "latency_ms": 1.0} for name in NODES],
        "deployments": [
            {"name": "web", "cpu": 1, "ram": 500, "service_rate": 50, "request_rate": 60},
            {"name": "api", "cpu": 1, "ram": 500, "service_rate": 80, "request_rate": 40},
        ],
        "distance_ms": [[0.0, 20.0, 40.0]],
    },
    "episode_steps": 5,
    "max_replicas": 6,
}
NOTHING, PLACE, REMOVE, MOVE = 0, 1, 1 + len(NODES), 1 + 2 * len(NODES)


@pytest.fixture
def state():
    found = KubernetesState()
    for name in NODES:
        found.add_node(name)
    found.add_deployment(SPACE, "web", ["edge-a", "edge-b"])
    found.add_deployment(SPACE, "api", ["edge-c"])
    found.metrics = {"latency": {"web": 60.0, "api": 40.0}, "load": {"web": 60.0, "api": 40.0}}
    return found


@pytest.fixture
def env(state, tmp_path):
    """Makes environments on the server; changes are keys of LiveConfig."""
    with kubernetes_api(state) as address:

        def made(**changes):
            config = {
                "namespace": SPACE,
                "allowed_namespaces": [SPACE],
                "server": address,
                "prometheus": address,
                "latency_query": "latency",
                "load_query": "load",
                "log": tmp_path / "writes.jsonl",
                "dry_run": False,
                "pods_per_minute": 100,
                "settle_seconds": 5,
                **changes,
            }
            live = LiveCluster(connect(server=address), LiveConfig.model_validate(config), WORLD, clock=lambda: 1000.0)
            return LiveEnv(live, sleep=lambda seconds: None)

        yield made


def logged(tmp_path, outcome):
    file = tmp_path / "writes.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line for line in lines if line["outcome"] == outcome]


def placed(state):
    found: dict[tuple[str, str], int] = {}
    for pod in state.pods.values():
        key = (pod["metadata"]["labels"]["app"], pod["spec"]["nodeName"])
        found[key] = found.get(key, 0) + 1
    return found


def test_it_sees_what_the_simulated_world_would_show_and_measures_the_reward(env):
    live = env()
    seen, _ = live.reset()
    assert seen in live.observation_space
    assert live.live.snapshot.pods.tolist() == [[1, 0], [1, 0], [0, 1]]
    assert set(live.live.snapshot.usage) == set(NODES)
    _, reward, _, _, info = live.step(np.array([NOTHING, NOTHING]))
    assert info["latency_ms"] == pytest.approx(52.0)
    assert reward == pytest.approx(sum(info[name] for name in ("latency", "resource", "balance", "refused")))


def test_gymnasium_finds_nothing_wrong_with_it(env, state):
    check_env(env(dry_run=True), skip_render_check=True)
    assert state.writes == []


def test_a_whole_episode_in_a_dry_run_writes_nothing_and_logs_what_it_would_have(env, state, tmp_path):
    live = env(dry_run=True)
    seen, _ = live.reset()
    rng = np.random.default_rng(0)
    ended = False
    while not ended:
        mask = seen["action_mask"].reshape(2, -1)
        seen, _, _, ended, _ = live.step((rng.random(mask.shape) * mask).argmax(axis=1))
    assert state.writes == []
    assert {method for method, _ in state.requests} == {"GET"}
    assert logged(tmp_path, "dry-run")


def test_live_writes_are_exactly_those_that_were_logged(env, state, tmp_path):
    live = env()
    live.reset()
    live.step(np.array([PLACE + 2, NOTHING]))
    live.step(np.array([NOTHING, PLACE + 0]))
    live.step(np.array([REMOVE + 2, NOTHING]))
    done = logged(tmp_path, "done")
    paths = {
        "scale": "/deployments/{}/scale",
        "affinity": "/deployments/{}",
        "mark": "/pods/{}",
        "evict": "/pods/{}/eviction",
    }
    wanted = [paths[line["verb"]].format(line["name"]) for line in done]
    assert [path.split(f"/{SPACE}", 1)[1] for _, path, _ in state.writes] == wanted
    assert len(logged(tmp_path, "asked")) == len(done)
    assert all(line["observation"]["load"] == [60.0, 40.0] for line in done)


def test_placing_scales_up_where_it_is_wanted_and_removing_takes_the_right_pod(env, state):
    live = env()
    live.reset()
    live.step(np.array([PLACE + 2, NOTHING]))
    assert placed(state)["web", "edge-c"] == 1
    assert state.deployments[SPACE, "web"]["spec"]["replicas"] == 3
    live.step(np.array([REMOVE + 1, NOTHING]))
    assert ("web", "edge-b") not in placed(state)
    assert state.deployments[SPACE, "web"]["spec"]["replicas"] == 2


def test_a_move_to_a_node_that_is_preferred_already_evicts_one_pod(env, state):
    live = env()
    live.reset()
    live.step(np.array([NOTHING, PLACE + 0]))
    assert placed(state)["api", "edge-a"] == 1
    before = len(state.writes)
    live.step(np.array([NOTHING, MOVE + 0]))
    assert [path.rsplit("/", 1)[1] for _, path, _ in state.writes[before:]] == ["eviction"]


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (Fault("PATCH", "/scale$", 409), FailedPrecondition, "it was changed by another party"),
        (Fault("PATCH", "/scale$", 403), PermissionDenied, "RBAC"),
        (Fault("PATCH", "/scale$", 429), ResourceExhausted, "try again later"),
        (Fault("PATCH", "/scale$", 500), Unavailable, "500"),
        (Fault("PATCH", "/scale$", 0), Unavailable, "does not answer"),
        (Fault("GET", "/nodes$", 403, times=9), PermissionDenied, "list nodes"),
        (Fault("GET", "/nodes$", 200, times=9, body=b"<html>no</html>"), FailedPrecondition, "cannot be read"),
        (Fault("GET", "/nodes$", 200, times=9, body=b'{"items": null}'), FailedPrecondition, "list nodes"),
        (Fault("GET", "/api/v1/query$", 200, times=9, body=b"[]"), FailedPrecondition, "Prometheus"),
        (Fault("GET", "metrics.k8s.io", 403, times=9), PermissionDenied, "metrics.k8s.io"),
        (Fault("GET", "metrics.k8s.io", 200, times=9, body=b'{"items": [1]}'), FailedPrecondition, "metrics.k8s.io"),
    ],
)
def test_a_server_that_refuses_or_lies_ends_in_one_sentence_with_the_cluster_unchanged(env, state, fault, kind, said):
    live = env()
    if fault.method == "PATCH":
        live.reset()
    state.faults.append(fault)
    before = json.dumps([sorted(placed(state).items()), state.deployments[SPACE, "web"]["spec"]], sort_keys=True)

    def looked_and_stepped():
        live.reset()
        live.step(np.array([REMOVE + 1, NOTHING]))

    with pytest.raises(kind, match=said) as raised:
        looked_and_stepped()
    assert "\n" not in raised.value.message
    after = json.dumps([sorted(placed(state).items()), state.deployments[SPACE, "web"]["spec"]], sort_keys=True)
    assert after == before
    assert state.writes == []
    assert not [one for one in state.faults if one.times == fault.times]


def test_somebody_elses_change_between_looking_and_writing_is_a_conflict(env, state):
    live = env()
    live.reset()
    with state.lock:
        state.deployments[SPACE, "web"]["metadata"]["resourceVersion"] = state.next_version()
    with pytest.raises(FailedPrecondition, match="409"):
        live.step(np.array([REMOVE + 1, NOTHING]))
    assert state.writes == []


def test_an_eviction_that_a_disruption_budget_forbids_is_reported(env, state):
    live = env()
    live.reset()
    live.step(np.array([NOTHING, PLACE + 0]))
    state.protected = {name for _, name in state.pods}
    before = len(state.writes)
    with pytest.raises(ResourceExhausted, match="evict"):
        live.step(np.array([NOTHING, MOVE + 0]))
    assert len(state.writes) == before


def test_a_watch_that_expired_is_begun_anew_and_one_that_always_does_is_given_up(env, state, tmp_path):
    live = env()
    live.reset()
    state.stuck = True
    state.oldest = 10**9
    with pytest.raises(FailedPrecondition, match="expired 3 times"):
        live.step(np.array([PLACE + 0, NOTHING]))
    watches = [path for method, path in state.requests if path.endswith("/pods")]
    assert len(watches) >= 6
    # Checks the writes: nothing is undone, and every write is in the log.
    assert len(state.writes) == len(logged(tmp_path, "done")) > 0
    assert len(logged(tmp_path, "asked")) == len(state.writes)


def test_pods_that_never_start_end_the_wait(env, state):
    live = env(settle_seconds=1)
    live.reset()
    state.stuck = True
    with pytest.raises(DeadlineExceeded, match="did not settle within 1 s"):
        live.step(np.array([PLACE + 0, NOTHING]))


def test_lists_longer_than_a_page_are_read_to_their_end(env, state):
    with state.lock:
        for _ in range(300):
            state.start_pod(SPACE, "other", "edge-a")
        state.start_pod(SPACE, "web", "edge-c")
    live = env()
    live.reset()
    assert live.live.snapshot.pods[:, 0].tolist() == [1, 1, 1]
    assert sum(path.endswith("/pods") for _, path in state.requests) == 2


def test_a_missing_api_server_is_reported():
    config = LiveConfig(namespace=SPACE, server="http://127.0.0.1:9", prometheus="http://127.0.0.1:9")
    live = LiveCluster(connect(server="http://127.0.0.1:9"), config, WORLD)
    with pytest.raises(Unavailable, match="does not answer"):
        live.read()


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"allowed_namespaces": []}, PermissionDenied, "allowed are: none"),
        ({"allowed_namespaces": ["other"]}, PermissionDenied, "allowed are: other"),
        ({"pods_per_minute": 1}, ResourceExhausted, "pods_per_minute is 1"),
        ({"writes_per_minute": 1}, ResourceExhausted, "writes_per_minute is 1"),
    ],
)
def test_limits_are_checked_before_the_first_write(env, state, changes, kind, said):
    live = env(**changes)
    live.reset()
    with pytest.raises(kind, match=said):
        live.step(np.array([PLACE + 2, NOTHING]))
    assert state.writes == []


def test_while_the_kill_switch_is_there_nothing_is_written(env, state, tmp_path):
    switch = tmp_path / "stop"
    switch.touch()
    live = env(kill_switch=switch)
    live.reset()
    with pytest.raises(FailedPrecondition, match="nothing is written"):
        live.step(np.array([PLACE + 2, NOTHING]))
    assert state.writes == []
    switch.unlink()
    live.step(np.array([PLACE + 2, NOTHING]))
    assert state.writes


def test_a_node_or_a_metric_that_is_missing_is_named(env, state):
    state.metrics["latency"] = {"web": 60.0}
    with pytest.raises(FailedPrecondition, match="latency_query returns no value for api"):
        env().reset()
    del state.nodes["edge-b"]
    with pytest.raises(NotFound, match="no node edge-b"):
        env().reset()


@pytest.mark.parametrize("status", [404, 503])
def test_a_cluster_without_measured_use_of_its_nodes_can_be_read(env, state, status):
    state.faults.append(Fault("GET", "metrics.k8s.io", status))
    live = env()
    live.reset()
    assert live.live.snapshot.usage == {}
    assert not state.faults


def test_a_cluster_without_a_ready_node_is_refused(env, state):
    for name in NODES:
        state.add_node(name, ready=False)
    with pytest.raises(FailedPrecondition, match="none of the world's 3 nodes is ready"):
        env().reset()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"web": 1}, "0 to 0, got 1"),
        ({"web": -1}, "0 to 0, got -1"),
        ({"shop": 0}, "users_at names shop; the world's deployments are web, api"),
    ],
)
def test_users_that_are_nowhere_or_of_nothing_are_refused(env, given, said):
    with pytest.raises(InvalidInput, match=said):
        env(users_at=given)


@pytest.mark.parametrize("text", [None, "", "a: [1\nb: }", "- 1\n- 2\n", "just words", "clusters: 7\ncontexts: 8\n"])
def test_a_kubeconfig_that_cannot_be_used_is_named_in_one_sentence(tmp_path, text):
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidInput, match=f"kubeconfig {file} cannot be used") as raised:
        connect(file)
    assert "\n" not in raised.value.message


def test_an_address_without_a_scheme_is_refused():
    with pytest.raises(InvalidInput, match="http or https address, got 'cluster:6443'"):
        connect(server="cluster:6443")


def test_a_node_that_is_not_ready_takes_no_pod(env, state):
    state.add_node("edge-b", ready=False)
    live = env()
    seen, _ = live.reset()
    assert seen["nodes"][1, -1] == 0.0
    mask = seen["action_mask"].reshape(2, -1)
    assert not mask[0, PLACE + 1]
