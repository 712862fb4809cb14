"""Whom the learning side meets: shares, priorities, and who goes when there are too many."""

from collections import Counter

import numpy as np
import pytest

from learner.policies.opponent_pool import OpponentPool, Record
from parlmesh.environments.two_players import NEWEST
from parlmesh.training.settings.opponents import OpponentsConfig


def pool(*versions, **settings):
    found = OpponentPool(OpponentsConfig(**settings), np.random.default_rng(0))
    for version in versions:
        found.add(version)
    return found


def met(found, rollouts=2000):
    shares: Counter[int] = Counter()
    for _ in range(rollouts):
        chosen = found.choose()
        assert sum(share for _, share in chosen) == pytest.approx(1.0)
        shares.update({version: share / rollouts for version, share in chosen})
    return shares


def test_without_a_past_only_the_acting_policy_is_met():
    assert pool().choose() == [(NEWEST, 1.0)]
    assert pool(1, 2, newest_share=1.0).choose() == [(NEWEST, 1.0)]


def test_the_newest_has_its_share_and_the_past_is_met_uniformly():
    shares = met(pool(1, 5, 9, newest_share=0.4, versions_per_rollout=1))
    assert shares[NEWEST] == pytest.approx(0.4)
    assert all(shares[version] == pytest.approx(0.2, abs=0.04) for version in (1, 5, 9))


def test_pfsp_meets_more_often_whom_it_seldom_beats():
    found = pool(1, 5, past="pfsp", newest_share=0.0, versions_per_rollout=1, pfsp_exponent=2.0)
    found.record(1, 89, 0, 10)
    found.record(5, 49, 0, 50)
    easy, hard = (1 - found.of(version).win_rate for version in (1, 5))
    shares = met(found)
    assert shares[5] == pytest.approx(hard**2 / (hard**2 + easy**2), abs=0.03)
    assert NEWEST not in shares


def test_a_version_becomes_an_opponent_at_its_interval_and_the_first_one_at_once():
    found = pool(interval_versions=10)
    assert found.due(1)
    found.add(1)
    assert not found.due(10)
    assert found.due(11)


def test_when_there_are_too_many_the_past_stays_spread_out():
    found = pool(kept=4)
    gone = [version for new in range(1, 101, 10) for version in found.add(new)]
    assert len(found.versions) == 4
    assert (found.versions[0], found.versions[-1]) == (1, 91)
    assert not set(gone) & set(found.versions)
    assert min(np.diff(found.versions)) >= 10


def test_games_against_who_is_gone_are_not_taken():
    found = pool(1)
    assert found.record(1, 1, 2, 3)
    assert not found.record(2, 1, 0, 0)
    assert (found.of(1), found.of(1).games) == (Record(1, 2, 3), 6)
    assert Record().win_rate == 0.5


def test_its_state_comes_back():
    found = pool(1, 12, 110)
    found.record(12, 3, 0, 1)
    other = pool()
    other.restore(found.state())
    assert (other.versions, other.state()) == ((1, 12, 110), found.state())
