"""The worlds as gymnasium and the fleet see them."""

import os
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import parlmesh.worlds  # noqa: F401 (registers the ids)
from parlmesh.environments import Environments, environment_spec
from parlmesh.errors import InvalidInput
from parlmesh.worlds.placement.environment import PlacementEnv, PlacementVectorEnv
from parlmesh.worlds.placement.load_patterns import read_trace

VERSIONS = [1, 2, 3]
TERMS = ("latency", "resource", "balance", "refused")


TOO_SMALL = {
    "nodes": [{"name": "a", "cpu": 1, "ram": 1000}],
    "deployments": [{"name": "d", "cpu": 4, "ram": 100, "service_rate": 1, "request_rate": 10}],
    "distance_ms": [[1]],
}


def leaves(seen):
    return list(seen.values()) if isinstance(seen, dict) else [seen]


def copied(seen):
    return [np.array(leaf) for leaf in leaves(seen)]


@pytest.mark.parametrize("version", VERSIONS)
def test_gymnasium_finds_nothing_wrong(version):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        check_env(gymnasium.make(f"parlmesh/Placement-v{version}", episode_steps=20).unwrapped)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_version_is_called_out_of_date(version):
    name = f"parlmesh/Placement-v{version}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = gymnasium.make(name)
        assert alone.spec is not None
        gymnasium.make_vec(name, 2, vectorization_mode="vector_entry_point").close()
        spec = gymnasium.envs.registration.EnvSpec.from_json(alone.spec.to_json())
        again = gymnasium.make(spec)
    assert again.spec is not None
    assert again.spec.id == alone.spec.id == name


def test_a_version_must_be_named():
    with pytest.raises(gymnasium.error.NameNotFound, match="Placement-v"):
        gymnasium.make("parlmesh/Placement")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_vector_form_keeps_to_its_spaces_and_resets_in_the_step_after_an_end(version):
    envs = gymnasium.make_vec(
        f"parlmesh/Placement-v{version}", 5, vectorization_mode="vector_entry_point", episode_steps=3
    )
    seen, _ = envs.reset(seed=1)
    envs.action_space.seed(1)
    for step in range(1, 9):
        assert seen in envs.observation_space
        seen, reward, terminated, truncated, info = envs.step(envs.action_space.sample())
        assert reward.shape == terminated.shape == truncated.shape == (5,)
        assert not terminated.any()
        assert truncated.all() == (step % 4 == 3)
        assert (reward == 0.0).all() == (step % 4 == 0)
        assert np.allclose(sum(info[name] for name in TERMS), reward)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_episode_of_the_vector_form_equals_the_same_episode_alone(version):
    envs = PlacementVectorEnv(3, version=version, episode_steps=30, node_failures=0.05)
    alone = [PlacementEnv(version=version, episode_steps=30, node_failures=0.05) for _ in range(3)]
    seen, _ = envs.reset(seed=7)
    firsts = [env.reset(seed=7 + index)[0] for index, env in enumerate(alone)]
    envs.action_space.seed(2)
    for _ in range(30):
        for index, first in enumerate(firsts):
            for many, one in zip(leaves(seen), leaves(first), strict=True):
                np.testing.assert_allclose(many[index], one, rtol=1e-6)
        actions = envs.action_space.sample()
        seen, reward, _, truncated, info = envs.step(actions)
        steps = [env.step(actions[index]) for index, env in enumerate(alone)]
        firsts = [step[0] for step in steps]
        np.testing.assert_allclose(reward, [step[1] for step in steps], rtol=1e-9)
        assert truncated.tolist() == [step[3] for step in steps]
        np.testing.assert_allclose(info["latency_ms"], [step[4]["latency_ms"] for step in steps], rtol=1e-9)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_seen_never_changes_afterwards(version):
    envs = PlacementVectorEnv(2, version=version, episode_steps=5, node_failures=0.2)
    seen, _ = envs.reset(seed=3)
    envs.action_space.seed(3)
    kept, copies = [seen], [copied(seen)]
    for _ in range(12):
        seen, *_ = envs.step(envs.action_space.sample())
        kept.append(seen)
        copies.append(copied(seen))
    for given_then, copy in zip(kept, copies, strict=True):
        for leaf, same in zip(leaves(given_then), copy, strict=True):
            np.testing.assert_array_equal(leaf, same)
            assert not np.shares_memory(leaf, envs.simulation.pods)
    for leaf in leaves(seen):
        leaf[...] = 0
    assert envs.simulation.pods.sum() > 0


def test_equal_seeds_give_equal_episodes_and_other_seeds_others():
    def episode(seed):
        envs = PlacementVectorEnv(2, episode_steps=20)
        envs.reset(seed=seed)
        return [envs.place(envs.simulation.pods * envs.simulation.alive[:, :, None])[1].tolist() for _ in range(50)]

    assert episode(4) == episode(4)
    assert episode(4) != episode(5)
    # The i-th is seeded by seed + i.
    assert [row[1] for row in episode(4)] == [row[0] for row in episode(5)]


def test_seeds_can_be_given_one_by_one_and_no_seed_goes_on():
    envs = PlacementVectorEnv(2)
    first, _ = envs.reset(seed=[8, 8])
    assert np.array_equal(first["deployments"][0], first["deployments"][1])
    again, _ = envs.reset()
    assert not np.array_equal(again["deployments"], first["deployments"])
    with pytest.raises(InvalidInput, match="one number or 2, got 3"):
        envs.reset(seed=[1, 2, 3])
    with pytest.raises(InvalidInput, match="whole numbers >= 0"):
        envs.reset(seed=-3)


def test_episodes_that_are_not_to_be_reset_go_on():
    envs = PlacementVectorEnv(2)
    envs.reset(seed=1)
    envs.step(np.zeros((2, 4), np.int64))
    envs.reset(seed=5, options={"reset_mask": np.array([True, False])})
    assert envs.simulation.time.tolist() == [0, 1]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_engine_finds_the_worlds_by_their_ids(version):
    spec = environment_spec({"id": f"parlmesh/Placement-v{version}"})
    assert spec.masked == (version == 3)
    assert bool(spec.observation_states) == (version == 1)
    assert spec.action.kind == ("multi_discrete" if version == 3 else "discrete")


def test_the_engine_steps_the_native_vector_form():
    envs = Environments({"id": "parlmesh/Placement-v3", "kwargs": {"episode_steps": 2}}, 4)
    seen = envs.reset(1)
    assert seen.mask is not None
    assert seen.mask.shape == (4, 4 * 25)
    assert isinstance(envs._envs, PlacementVectorEnv)
    _, reward, _, truncated = envs.step(np.zeros((4, 4), np.int64))
    assert (reward < 0).all()
    assert not truncated.any()
    envs.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"nodes": 1}, "nodes"),
        ({"profile": "weekly"}, "mixed, steady, daily, bursty, trace"),
        ({"min_replicas": 9}, "at most max_replicas, 8, got 9"),
        ({"profile": "trace"}, "needs a trace"),
        ({"trace": [1.0, 2.0, 3.0]}, "must be trace when a trace is given"),
        ({"profile": "trace", "trace": [0.0, 0.0, 0.0]}, "not all 0"),
        ({"profile": "trace", "trace": [1.0, -2.0, 3.0]}, "numbers >= 0"),
        ({"profile": "trace", "trace": "/no/such.csv"}, "cannot be read"),
        ({"profile": "trace", "trace": [1.0, float("nan"), 2.0]}, "finite numbers"),
        ({"profile": "trace", "trace": ["much", 1, 2]}, "a list of numbers"),
        ({"profile": "trace", "trace": 7}, "a list of numbers, got 7"),
        ({"cluster": TOO_SMALL}, "deployment d fits on no node"),
        ({"noodles": 3}, "noodles"),
        ({"version": 4}, "1, 2 or 3, got 4"),
        ({"version": 1, "deployments": 2}, "has 1 deployment, got 2"),
        ({"load_noise": float("nan")}, "load_noise"),
        ({"cluster": {"nodes": []}}, "cluster"),
    ],
)
def test_an_impossible_world_is_refused_by_name(arguments, said):
    with pytest.raises(InvalidInput, match=said):
        PlacementVectorEnv(1, **arguments)


@pytest.mark.parametrize("actions", [np.zeros((2, 3), int), np.full((2, 4), 25), np.full((2, 4), -1), np.zeros((2, 4))])
def test_actions_outside_the_space_are_refused_and_change_nothing(actions):
    envs = PlacementVectorEnv(2)
    envs.reset(seed=1)
    before = envs.simulation.pods.copy()
    with pytest.raises(InvalidInput, match="actions must be"):
        envs.step(actions)
    assert np.array_equal(envs.simulation.pods, before)
    assert not envs.simulation.time.any()


def test_a_step_before_the_first_reset_is_refused():
    with pytest.raises(gymnasium.error.ResetNeeded):
        PlacementVectorEnv(1).step(np.zeros((1, 4), np.int64))


def test_a_trace_is_replayed_from_its_part_and_keeps_the_mean_rate(tmp_path):
    file = tmp_path / "load.csv"
    file.write_text("timestamp,value\n" + "\n".join(f"t{n},{1 if n < 200 else 4}" for n in range(300)))
    loads = {}
    for part in ("first", "last"):
        envs = PlacementVectorEnv(1, profile="trace", trace=str(file), trace_part=part, load_noise=0.0)
        envs.reset(seed=1)
        loads[part] = envs.simulation.coming(0).load / envs.simulation.cluster.request_rate
    assert np.allclose(loads["first"], 0.5)
    assert np.allclose(loads["last"], 2.0)


def test_a_trace_that_a_spreadsheet_wrote_keeps_its_first_number(tmp_path):
    file = tmp_path / "load.csv"
    file.write_bytes("3\r\n1\r\n2\r\n".encode("utf-8-sig"))
    assert read_trace(file, "all").tolist() == [1.5, 0.5, 1.0]


NAB = Path(os.environ.get("PARLMESH_DATA", "data")) / "nab"


@pytest.mark.skipif(not NAB.is_dir(), reason="no folder nab in PARLMESH_DATA")
@pytest.mark.parametrize("file", sorted(NAB.glob("*.csv")), ids=lambda path: path.stem)
def test_recorded_series_of_servers_are_played(file):
    parts = []
    for part in ("first", "last"):
        envs = PlacementVectorEnv(2, profile="trace", trace=str(file), trace_part=part)
        envs.reset(seed=1)
        parts.append(envs.simulation.coming(0).load)
        assert np.isfinite(envs.step(np.zeros((2, 4), np.int64))[1]).all()
    first, last = parts
    assert not np.allclose(first, last)


def test_a_hundred_nodes_and_fifty_deployments_work():
    envs = PlacementVectorEnv(2, nodes=100, deployments=50, episode_steps=3)
    seen, _ = envs.reset(seed=1)
    assert seen["action_mask"].shape == (2, 50 * 301)
    envs.action_space.seed(1)
    for _ in range(5):
        seen, reward, _, _, _ = envs.step(envs.action_space.sample())
        assert np.isfinite(reward).all()
        assert seen in envs.observation_space


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 12),
    st.integers(1, 5),
    st.integers(1, 9),
    st.sampled_from(["mixed", "steady", "daily", "bursty"]),
    st.sampled_from(["shared", "per_pod"]),
    st.floats(0.05, 20.0),
    st.floats(0.0, 1.0),
    st.integers(0, 2**31),
)
def test_whatever_is_done_pods_stay_within_what_nodes_have(
    nodes, deployments, most, profile, queue, scale, failures, seed
):
    envs = PlacementVectorEnv(
        3,
        nodes=nodes,
        deployments=deployments,
        max_replicas=most,
        profile=profile,
        queue=queue,
        load_scale=scale,
        node_failures=failures,
        episode_steps=12,
    )
    envs.reset(seed=seed)
    envs.action_space.seed(seed)
    world = envs.simulation
    for _ in range(15):
        seen, reward, _, _, info = envs.step(envs.action_space.sample())
        assert seen in envs.observation_space
        assert (world.pods >= 0).all()
        assert (world.pods.sum(axis=1) <= most).all()
        assert (world.pods @ world.cluster.need <= world.cluster.capacity + 1e-9).all()
        assert not world.pods[~world.alive].any()
        assert world.alive.any(axis=1).all()
        assert np.isfinite(reward).all()
        assert ((info["lost"] >= 0) & (info["lost"] <= 1)).all()


def test_in_v2_the_node_of_the_farthest_pod_is_seen_and_choosing_it_leaves_everything():
    nodes = 4
    envs = PlacementVectorEnv(nodes, version=2, nodes=nodes, node_failures=0.0, mobility=0.0, profile="steady")
    seen, _ = envs.reset(seed=1)
    world = envs.simulation
    # Every node has the farthest pod once: in episode i, one pod is on node i, which is farthest from the users.
    world.pods[:] = 0
    replicas = int(world.first_replicas()[0])
    for episode in range(nodes):
        world.distance[episode, :, 0] = 5.0
        world.distance[episode, episode, 0] = 50.0
        world.pods[episode, episode, 0] = 1
        world.pods[episode, (episode + 1) % nodes, 0] = replicas - 1
    seen = envs.observe()
    stays = seen.reshape(nodes, nodes, -1)[:, :, -1]
    assert stays.tolist() == np.eye(nodes).tolist()
    before = world.pods.copy()
    wanted, refused = envs.view.act(world, np.arange(nodes))
    assert np.array_equal(wanted, before)
    assert not refused.any()


def test_in_v2_a_pod_that_was_lost_is_placed_first():
    envs = PlacementVectorEnv(1, version=2, nodes=4, node_failures=0.0)
    envs.reset(seed=1)
    world = envs.simulation
    world.pods[0, world.pods[0, :, 0].argmax(), 0] -= 1
    assert envs.observe().reshape(4, -1)[:, -1].tolist() == [0.0] * 4
    wanted, _ = envs.view.act(world, np.array([3]))
    assert (wanted - world.pods)[0, :, 0].tolist() == [0, 0, 0, 1]
