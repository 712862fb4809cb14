"""Both kinds of replay hold the same steps; they differ in what they draw."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.training.replay.replay import PrioritisedReplay, UniformReplay
from parlmesh.training.replay.ring import row_bytes

COLUMNS = {"observation": ("float32", (2,)), "action": ("int64", ())}


def uniform(capacity):
    return UniformReplay(COLUMNS, capacity)


def prioritised(capacity):
    return PrioritisedReplay(COLUMNS, capacity, exponent=0.6)


def rows(first, count):
    """Steps that can be told apart: step i has the action i."""
    actions = np.arange(first, first + count)
    return {"observation": np.stack([actions, -actions], axis=1).astype(np.float32), "action": actions}


def held(replay):
    return replay.tensors()["replay.action"].tolist()


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("make", [uniform, prioritised])
@settings(max_examples=40, deadline=None)
@given(capacity=st.integers(1, 12), batches=st.lists(st.integers(0, 30), max_size=8))
def test_a_batch_equals_its_rows_one_by_one_and_the_oldest_go_first(make, capacity, batches):
    whole, single, total = make(capacity), make(capacity), 0
    for count in batches:
        whole.add(rows(total, count))
        for index in range(count):
            single.add(rows(total + index, 1))
        total += count
    same(whole.tensors(), single.tensors())
    assert whole.inserted == total
    assert sorted(held(whole)) == list(range(max(0, total - capacity), total))


@pytest.mark.parametrize("make", [uniform, prioritised])
def test_what_is_drawn_was_added_and_its_columns_belong_together(make):
    replay, rng = make(50), np.random.default_rng(0)
    replay.add(rows(0, 70))
    sample = replay.sample(400, 0.5, rng)
    actions = sample.rows["action"]
    assert set(actions.tolist()) <= set(range(20, 70))
    assert len(set(actions.tolist())) > 40
    np.testing.assert_array_equal(sample.rows["observation"], np.stack([actions, -actions], axis=1))


@pytest.mark.parametrize("make", [uniform, prioritised])
@settings(max_examples=30, deadline=None)
@given(before=st.integers(1, 15), counts=st.lists(st.integers(0, 20), min_size=1, max_size=4))
def test_undo_takes_back_steps_and_priorities(make, before, counts):
    replay, rng = make(10), np.random.default_rng(0)
    replay.add(rows(0, before))
    replay.learnt(np.array([0]), np.array([3.0]))
    expected = replay.tensors()
    replay.begin()
    for index, count in enumerate(counts):
        replay.add(rows(1000 * index, count))
        sample = replay.sample(4, 0.5, rng)
        replay.learnt(sample.slots, np.arange(4) + 5.0)
    replay.undo()
    same(replay.tensors(), expected)


@pytest.mark.parametrize("make", [uniform, prioritised])
@pytest.mark.parametrize("filled", [0, 7, 25])
def test_a_restored_replay_draws_what_the_original_draws(make, filled):
    original, copy = make(10), make(10)
    original.add(rows(0, filled))
    if filled:
        original.learnt(np.array([2, 5]), np.array([9.0, 0.1]))
    copy.add(rows(500, 10))
    copy.restore(original.tensors())
    for replay in (original, copy):
        replay.add(rows(100, 3))
    one, other = (replay.sample(64, 0.5, np.random.default_rng(1)) for replay in (original, copy))
    same(one.rows, other.rows)


def chi_square(counts, probabilities):
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_uniform_draws_are_uniform():
    replay = uniform(20)
    replay.add(rows(0, 33))
    draws = replay.sample(40_000, 1.0, np.random.default_rng(5)).slots
    # 19 degrees of freedom: 43.8 is exceeded once in a thousand times.
    assert chi_square(np.bincount(draws, minlength=20), np.full(20, 1 / 20)) < 43.8


def test_draws_follow_the_priorities():
    replay, rng = prioritised(20), np.random.default_rng(6)
    replay.add(rows(0, 20))
    errors = np.linspace(0.0, 8.0, 20)
    replay.learnt(np.arange(20), errors)
    counts = np.zeros(20)
    for _ in range(2_000):
        counts += np.bincount(replay.sample(16, 0.5, rng).slots, minlength=20)
    priorities = (errors + 1e-6) ** 0.6
    found = chi_square(counts[1:], priorities[1:] / priorities[1:].sum())
    # Stratified draws scatter less than independent ones; 18 degrees of freedom.
    assert found < 42.3
    assert counts[0] < 20


def test_new_steps_are_as_likely_as_the_worst_predicted():
    replay = prioritised(4)
    replay.add(rows(0, 2))
    replay.learnt(np.array([0]), np.array([50.0]))
    replay.add(rows(2, 1))
    priorities = replay.tensors()["replay.priorities"]
    assert priorities[2] == priorities[0] > priorities[1]


@given(st.floats(0.0, 1.0), st.integers(0, 2**32 - 1))
def test_weights_undo_the_bias_as_far_as_asked(importance, seed):
    replay, rng = prioritised(8), np.random.default_rng(seed)
    replay.add(rows(0, 8))
    replay.learnt(np.arange(8), rng.random(8) * 5)
    sample = replay.sample(32, importance, rng)
    priorities = replay.tensors()["replay.priorities"]
    probabilities = (priorities / priorities.sum())[sample.slots]
    expected = (8 * probabilities) ** -importance
    np.testing.assert_allclose(sample.weights, expected / expected.max(), rtol=1e-5)


def test_with_full_importance_the_weighted_mean_is_the_plain_mean():
    replay, rng = prioritised(30), np.random.default_rng(0)
    replay.add(rows(0, 30))
    replay.learnt(np.arange(30), rng.random(30) * 3 + 0.1)
    sample = replay.sample(60_000, 1.0, rng)
    weighted = np.average(sample.rows["action"], weights=sample.weights)
    assert weighted == pytest.approx(14.5, abs=0.1)
    assert sample.rows["action"].mean() != pytest.approx(14.5, abs=0.1)


def test_the_bytes_of_a_row_are_those_of_all_columns():
    assert row_bytes(COLUMNS) == 2 * 4 + 8
