from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from learner.experience.rollout_demand import rollouts_wanted, shares


def test_at_lag_zero_nothing_is_asked_for_while_a_batch_is_under_way():
    assert rollouts_wanted(batch=4, max_policy_lag=0, outstanding=0, queued=0, training=0) == 4
    assert rollouts_wanted(batch=4, max_policy_lag=0, outstanding=0, queued=0, training=4) == 0


@given(st.integers(1, 5), st.integers(0, 4), st.data())
def test_in_order_no_trajectory_is_ever_trained_past_the_limit(batch, lag, data):
    """Actors finish in order, each starting with whatever version is newest at some moment after it was asked for."""
    version = 1
    outstanding: deque[int] = deque()
    queued: deque[int] = deque()
    taken: list[int] = []
    for _ in range(60):
        # Also while a batch is trained on, which is when experience is asked for most.
        wanted = rollouts_wanted(
            batch=batch, max_policy_lag=lag, outstanding=len(outstanding), queued=len(queued), training=len(taken)
        )
        outstanding.extend([version] * wanted)
        for _ in range(data.draw(st.integers(0, len(outstanding)))):
            queued.append(outstanding.popleft())
        if taken and data.draw(st.booleans()):
            taken, version = [], version + 1
        if not taken and len(queued) >= batch:
            taken = [queued.popleft() for _ in range(batch)]
            assert all(version - started <= lag for started in taken)


def test_slots_that_would_have_nothing_to_do_share_the_environments_of_the_others():
    assert shares(slots=2, batch=1, max_policy_lag=1, num_envs=64) == (64, 1)
    assert shares(slots=4, batch=1, max_policy_lag=1, num_envs=64) == (16, 4)
    assert shares(slots=2, batch=1, max_policy_lag=0, num_envs=64) == (32, 2)
    assert shares(slots=5, batch=1, max_policy_lag=1, num_envs=8) == (1, 8)
    assert shares(slots=5, batch=1, max_policy_lag=1, num_envs=4) == (1, 4)
    assert shares(slots=4, batch=1, max_policy_lag=1, num_envs=1) == (1, 1)
    assert shares(slots=0, batch=1, max_policy_lag=1, num_envs=64) == (64, 1)


@given(st.integers(0, 40), st.integers(1, 5), st.integers(0, 4), st.integers(1, 100))
def test_a_divided_batch_is_as_large_as_before(slots, batch, lag, num_envs):
    envs, fragments = shares(slots=slots, batch=batch, max_policy_lag=lag, num_envs=num_envs)
    assert envs * fragments == num_envs * batch
    assert (lag + 1) * fragments >= slots or envs == 1
