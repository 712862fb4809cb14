"""Opponents are on disk before they are met, come back after a restart, and believe no stranger."""

import numpy as np
import pytest
from pydantic import ValidationError

from learner.policies.league import League
from learner.policies.registry import PolicyRegistry
from parlmesh.errors import NotFound
from parlmesh.policies.policy_file import pack_policy
from parlmesh.policies.policy_spec import PolicySpec
from parlmesh.training.settings.opponents import OpponentsConfig
from parlmesh.types import ActionSpec


def league(folder, registry=None, **settings):
    config = OpponentsConfig(**{"interval_versions": 1, "versions_per_rollout": 1} | settings)
    return League(config, registry or PolicyRegistry("run", "uid"), folder, seed=0)


def policy(version):
    spec = PolicySpec((4,), ActionSpec("discrete", (2,)), hidden=(2,))
    return pack_policy(spec, {"weights": np.full(2, version, np.float32)})


def entered(found, registry, version):
    registry.publish(version, policy(version))
    assert found.due(version)
    found.save(version, registry.get("", version).blob.data)
    found.enter(version)


def test_an_opponent_is_served_as_long_as_it_is_one_and_no_longer(tmp_path):
    registry = PolicyRegistry("run", "uid")
    found = league(tmp_path, registry, kept=2)
    for version in range(1, 301):
        entered(found, registry, version)
    assert len(found.pool.versions) == 2
    assert registry.get("", 300).blob.data == policy(300)
    oldest = found.pool.versions[0]
    assert registry.get("", oldest).blob.data == policy(oldest)
    with pytest.raises(NotFound):
        registry.get("", 2)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_opponents_outlive_the_learner_and_what_is_damaged_is_left_out(tmp_path):
    first = PolicyRegistry("run", "uid")
    found = league(tmp_path, first)
    for version in (1, 2, 3, 4, 5):
        entered(found, first, version)
    (tmp_path / "v00000002.safetensors").unlink()
    (tmp_path / "v00000004.safetensors").write_bytes(policy(4)[:-1])
    (tmp_path / "v00000005.safetensors").write_bytes(b"")
    second = PolicyRegistry("run", "uid")
    again = league(tmp_path, second)
    again.recall()
    assert again.pool.versions == (1, 3)
    found_again, kept = second.find(3), first.find(3)
    assert found_again is not None
    assert kept is not None
    assert found_again.blob.digest == kept.blob.digest
    (tmp_path / "records.json").write_text("[1")
    nothing = league(tmp_path)
    nothing.recall()
    assert nothing.pool.versions == ()


def test_counts_of_strangers_are_checked(tmp_path):
    registry = PolicyRegistry("run", "uid")
    found = league(tmp_path, registry)
    entered(found, registry, 1)
    found.take({"games": {"1": [3, 1, 0], "0": [1, 1, 1]}})
    for wrong in (
        {"games": {"1": [-1, 0, 0]}},
        {"games": {"1": [1e99, 0, 0]}},
        {"games": {"1": ["x", 0, 0]}},
        {"games": {"99": [1, 0, 0]}},
        {"games": {"x": [1, 0, 0]}},
        {"games": [1]},
        {"games": {"1": [1, 0, 0]}, "opponents": {"1": "another digest"}},
    ):
        found.take(wrong)
    assert found.pool.state() == {"1": [3, 1, 0]}
    assert found.curves()["selfplay/score"] == 3.5 / 4
    assert "selfplay/score" not in found.curves()


def test_a_scripted_opponent_needs_no_versions(tmp_path):
    found = league(tmp_path, scripted=True)
    assert not found.due(1)
    assert found.asked() == []


def test_the_gate_lets_through_the_first_and_then_only_who_surely_beats_the_promoted(tmp_path):
    registry = PolicyRegistry("run", "uid")
    found = league(tmp_path, registry, match_games=100, gate=True)
    entered(found, registry, 1)
    assert found.passes(1)
    found.promote(1, b"policy 1")
    for version in (2, 3, 4):
        registry.publish(version, b"policy %d" % version)
    assert found.references(4) == [1]
    found.rate(2, 1, 55, 0, 45)
    found.rate(3, 1, 70, 0, 30)
    assert [found.passes(version) for version in (2, 3, 4)] == [False, True, False]
    found.promote(3, b"policy 3")
    assert found.references(4) == [1, 3]
    rating, first = found.rating(3), found.rating(1)
    assert rating is not None
    assert first is not None
    assert rating.elo - rating.error > first.elo
    assert found.rating(4) is None


def test_without_matches_nobody_is_met_and_without_a_gate_nobody_promoted(tmp_path):
    registry = PolicyRegistry("run", "uid")
    found = league(tmp_path, registry)
    entered(found, registry, 1)
    assert found.references(2) == []
    assert not found.passes(2)
    with pytest.raises(ValidationError, match="match_games"):
        OpponentsConfig(gate=True)


def test_ratings_outlive_the_learner_and_damaged_ones_start_anew(tmp_path):
    found = league(tmp_path, match_games=10)
    found.rate(2, 1, 7, 2, 1)
    found.rate(3, 2, 6, 0, 4)
    found.save_matches()
    again = league(tmp_path, match_games=10)
    again.recall()
    assert again.rating(3) == found.rating(3)
    assert again.rating(3) is not None
    (tmp_path / "matches.json").write_text("[[1, 2]]")
    anew = league(tmp_path, match_games=10)
    anew.recall()
    assert anew.rating(3) is None
