"""Packets and their hops, as gymnasium and the fleet see them."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import parlmesh.worlds  # noqa: F401 (registers the ids)
from parlmesh.environments import environment_spec
from parlmesh.errors import InvalidInput
from parlmesh.worlds.routing.environment import MeshRoutingEnv, MeshRoutingVectorEnv
from parlmesh.worlds.routing.link_queue import overflow, undelivered, waiting

SMALL: dict[str, Any] = {"networks": 2, "nodes": 8, "scenarios": 3}
CHAIN = "graph [ node [ id 0 ] node [ id 1 ] node [ id 2 ] edge [ source 0 target 1 ] edge [ source 1 target 2 ] ]"


def test_gymnasium_finds_nothing_wrong():
    check_env(gymnasium.make("parlmesh/MeshRouting-v0", **SMALL).unwrapped)


def test_the_engine_finds_it_by_its_id():
    spec = environment_spec({"id": "parlmesh/MeshRouting-v0", "kwargs": SMALL})
    assert spec.masked
    assert spec.action.sizes == (8,)


def test_a_packet_of_the_vector_form_equals_the_same_packet_alone_and_nothing_seen_changes():
    envs = gymnasium.make_vec(
        "parlmesh/MeshRouting-v0", 3, vectorization_mode="vector_entry_point", **SMALL, load=0.5, link_failures=0.05
    )
    alone = [MeshRoutingEnv(**SMALL, load=0.5, link_failures=0.05) for _ in range(3)]
    seen, _ = envs.reset(seed=7)
    ones = [env.reset(seed=7 + index)[0] for index, env in enumerate(alone)]
    envs.action_space.seed(1)
    kept = []
    ended = [False] * 3
    for _ in range(60):
        kept.append((seen, {name: values.copy() for name, values in seen.items()}))
        assert seen in envs.observation_space
        actions = envs.action_space.sample()
        seen, reward, terminated, truncated, _ = envs.step(actions)
        assert not truncated.any()
        for index, env in enumerate(alone):
            if ended[index]:
                ones[index], earned, over = env.reset()[0], 0.0, False
            else:
                ones[index], earned, over, _, _ = env.step(actions[index])
            ended[index] = over
            assert reward[index] == pytest.approx(earned)
            assert terminated[index] == over
            for name, values in ones[index].items():
                np.testing.assert_array_equal(seen[name][index], values)
    for given_then, copy in kept:
        for name, values in copy.items():
            np.testing.assert_array_equal(given_then[name], values)


@pytest.fixture
def chain(tmp_path):
    file = tmp_path / "chain.gml"
    file.write_text(CHAIN)
    calm = {"load": 0.0, "link_failures": 0.0, "worst_delivery": 1.0, "neighbours": 2}
    return lambda **changes: MeshRoutingEnv(topology=str(file), **{**calm, **changes})


def sent(env, source, goal):
    """A packet between these two."""
    for seed in range(200):
        env.reset(seed=seed)
        if (env.packets.node[0], env.packets.goal[0]) == (source, goal):
            return env
    raise AssertionError("no seed sends such a packet")


def test_a_hop_costs_its_transmissions_and_a_packet_that_arrives_is_delivered(chain):
    env = sent(chain(), 0, 2)
    _, reward, terminated, _, info = env.step(0)
    assert (reward, terminated) == (-0.02, False)
    _, reward, terminated, _, info = env.step(0)
    assert (reward, terminated) == (-0.02, True)
    assert info == {"delivered": 1.0, "lost": 0.0, "etx": 1.0, "delay": 1.0}


def test_a_packet_whose_hops_are_used_up_is_lost_and_not_delivered(chain):
    env = sent(chain(ttl=3), 1, 2)
    for _ in range(2):
        # Away from the destination and back: the second neighbour, then the only one.
        _, _, terminated, _, info = env.step(1 if env.packets.node[0] == 1 else 0)
        assert not terminated
    _, reward, terminated, _, info = env.step(1)
    assert terminated
    assert (info["delivered"], info["lost"]) == (0.0, 1.0)
    assert reward == pytest.approx(-1.02)


def test_a_packet_that_arrives_with_its_last_hop_is_delivered(chain):
    env = sent(chain(ttl=2), 0, 2)
    env.step(0)
    _, _, terminated, _, info = env.step(0)
    assert terminated
    assert info["delivered"] == 1.0


def test_a_link_that_is_down_is_masked_and_a_packet_sent_over_it_is_lost(chain):
    env = sent(chain(link_failures=0.3, repair_steps=4), 1, 2)
    seen, _ = env.reset(seed=0)
    checked = 0
    for seed in range(300):
        seen, _ = env.reset(seed=seed)
        up = env.many.choices.up[0]
        if env.packets.node[0] == 1 and up.any() and not up.all():
            assert seen["action_mask"].tolist() == up.astype(int).tolist()
            _, _, terminated, _, info = env.step(int(np.flatnonzero(~up)[0]))
            assert terminated
            assert info["lost"] == 1.0
            checked += 1
    assert checked


def test_a_packet_without_a_neighbour_is_lost(chain):
    env = sent(chain(), 0, 2)
    _, _, terminated, _, info = env.step(1)
    assert terminated
    assert info["lost"] == 1.0


def test_a_bounded_queue_behaves_as_its_formulas_say():
    full = overflow(np.array([0.0, 0.5, 1.0, 2.0]), 4)
    assert full == pytest.approx([0.0, 0.5**4 * 0.5 / (1 - 0.5**5), 0.2, 16 / 31], rel=1e-3)
    # By the states' probabilities: a packet that finds n < K others waits for them.
    rho = 0.8
    states = rho ** np.arange(5)
    assert waiting(np.array([rho]), 4)[0] == pytest.approx((states[:4] * np.arange(4)).sum() / states[:4].sum())
    assert undelivered(np.array([1.0, 2.0]), 3) == pytest.approx([0.0, 0.0625])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"load": -0.1}, "within 0 to 10"),
        ({"load": [0.9, 0.1]}, "a number or a range"),
        ({"load": [0.1, 0.2, 0.3]}, "a number or a range"),
        ({"load": "much"}, "a number"),
        ({"ttl": 1}, "ttl"),
        ({"topologies": ["Abilene"]}, "must name that folder"),
        ({"topology": "/no/such/place.gml"}, "cannot be read"),
        ({"wires": 3}, "wires"),
        ({"nodes": 500, "networks": 1000, "scenarios": 1000}, "at most"),
    ],
)
def test_an_impossible_mesh_is_refused_by_name(arguments, said):
    if said == "at most":
        arguments = {"nodes": 40, "networks": 100, "scenarios": 1000, "ttl": 255}
    with pytest.raises(InvalidInput, match=said):
        MeshRoutingVectorEnv(1, **arguments)


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 20), st.integers(2, 10), st.floats(0.0, 3.0), st.floats(0.0, 1.0), st.integers(0, 2**31))
def test_packets_stay_in_their_mesh_and_always_end(nodes, neighbours, load, failures, seed):
    envs = MeshRoutingVectorEnv(
        4, networks=2, nodes=nodes, scenarios=2, neighbours=neighbours, load=load, link_failures=failures, ttl=6
    )
    envs.reset(seed=seed)
    rng = np.random.default_rng(seed)
    since = np.zeros(4, int)
    for _ in range(20):
        mask = envs.observe()["action_mask"]
        assert mask.any(axis=1).all()
        seen, reward, terminated, _, info = envs.step((rng.random(mask.shape) * mask).argmax(axis=1))
        assert seen in envs.observation_space
        assert np.isfinite(reward).all()
        assert (envs.packets.node < envs.packets.meshes.nodes[envs.packets.mesh]).all()
        assert (terminated == (info["delivered"] + info["lost"] == 1.0)).all()
        since = np.where(terminated, 0, since + 1)
        assert (since <= 6).all()
