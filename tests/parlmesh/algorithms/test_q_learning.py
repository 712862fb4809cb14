import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.algorithms.q_learning import q_learning_update

STATES, ACTIONS = 6, 3
seeds = st.integers(0, 2**32 - 1)


def made_up(seed, batch):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(STATES, ACTIONS))
    transitions = (
        rng.integers(0, STATES, batch),
        rng.integers(0, ACTIONS, batch),
        rng.normal(size=batch),
        rng.integers(0, STATES, batch),
        rng.random(batch) < 0.3,
    )
    return table, transitions


def slow(table, transitions, step_size, discount):
    """Every pair moves once per visit, always towards the mean target of its visits."""
    found = table.copy()
    targets: dict[tuple[int, int], list[float]] = {}
    for state, action, reward, following, terminated in zip(*transitions, strict=True):
        target = reward if terminated else reward + discount * max(table[following])
        targets.setdefault((state, action), []).append(target)
    for pair, values in targets.items():
        for _ in values:
            found[pair] += step_size * (np.mean(values) - found[pair])
    return found


@given(seeds, st.integers(1, 12), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_batch_equals_the_slow_update(seed, batch, step_size, discount):
    table, transitions = made_up(seed, batch)
    expected = slow(table, transitions, step_size, discount)
    q_learning_update(table, *transitions, step_size=step_size, discount=discount)
    np.testing.assert_allclose(table, expected, atol=1e-9)


@given(seeds)
def test_one_transition_is_the_textbooks_update(seed):
    table, (states, actions, rewards, following, terminated) = made_up(seed, 1)
    before = table[states[0], actions[0]]
    target = rewards[0] + (0 if terminated[0] else 0.9 * table[following[0]].max())
    errors = q_learning_update(table, states, actions, rewards, following, terminated, step_size=0.1, discount=0.9)
    assert errors[0] == pytest.approx(target - before)
    assert table[states[0], actions[0]] == pytest.approx(before + 0.1 * (target - before))


@given(seeds, st.integers(2, 10))
def test_the_order_of_a_batch_does_not_matter(seed, batch):
    table, transitions = made_up(seed, batch)
    order = np.random.default_rng(seed).permutation(batch)
    other = table.copy()
    q_learning_update(table, *transitions, step_size=0.3, discount=0.9)
    q_learning_update(other, *(column[order] for column in transitions), step_size=0.3, discount=0.9)
    np.testing.assert_allclose(table, other, atol=1e-12)


def test_an_end_is_worth_its_reward_alone():
    table = np.full((2, 2), 100.0)
    one = np.array([0])
    q_learning_update(table, one, one, np.array([1.0]), np.array([1]), np.array([True]), step_size=1.0, discount=0.9)
    assert table[0, 0] == 1.0
