import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.experience import ExperienceQueue, TrajectorySchema
from parlmesh.errors import FailedPrecondition, FleetError, InvalidInput, ResourceExhausted
from parlmesh.types import ActionSpec, EnvironmentSpec, EpisodeColumns, Fragment, Trajectory

SPEC = EnvironmentSpec((4,), "float32", ActionSpec("discrete", (2,)))


def columns(**changes):
    return {
        "observation": np.zeros((4, 2, 4), np.float32),
        "action": np.zeros((3, 2), np.int64),
        "log_prob": np.full((3, 2), -0.7, np.float32),
        "reward": np.ones((3, 2), np.float32),
        "terminated": np.zeros((3, 2), np.bool_),
        "truncated": np.zeros((3, 2), np.bool_),
        "valid": np.ones((3, 2), np.bool_),
        **changes,
    }


def trajectory(sequence=1, *, version=5, actor="a", incarnation=1, run="r", fragment=None):
    return Trajectory(run, actor, incarnation, sequence, version, Fragment(fragment or columns(), []))


def test_actions_of_a_bounded_policy_lie_within_one():
    spec = EnvironmentSpec((4,), "float32", ActionSpec("continuous", low=(-2.0,), high=(2.0,)))
    bounded, free = (
        TrajectorySchema(spec, 0, trajectory_steps=3, num_envs=2, bounded_actions=bounded) for bounded in (True, False)
    )
    edge, beyond = ({**columns(), "action": np.full((3, 2, 1), action, np.float32)} for action in (-1.0, 1.5))
    bounded.check(edge)
    free.check(beyond)
    with pytest.raises(InvalidInput, match=r"column action must lie within ±1, got 1.5..1.5"):
        bounded.check(beyond)


def queue(lag=2, most=100):
    schema = TrajectorySchema(SPEC, 0, trajectory_steps=3, num_envs=2)
    return ExperienceQueue("r", schema, max_queued=most, max_policy_lag=lag, first_version=3)


def balanced(q):
    return q.received == q.trained + q.training + len(q) + sum(q.dropped.values())


@pytest.mark.parametrize(
    ("bad", "reason", "sentence"),
    [
        ({"reward": np.ones((3, 3), np.float32)}, "SHAPE", r"column reward must have shape \[3, 2\], got \[3, 3\]"),
        ({"reward": np.ones((1, 2), np.float32)}, "SHAPE", r"column reward must have shape \[3, 2\], got \[1, 2\]"),
        ({"reward": np.ones((3, 2))}, "DTYPE", "column reward must be float32, got float64"),
        ({"action": np.zeros((3, 2), np.int32)}, "DTYPE", "column action must be int64, got int32"),
        ({"observation": np.full((4, 2, 4), np.nan, np.float32)}, "NOT_FINITE", "column observation .* not finite"),
        ({"log_prob": np.full((3, 2), -np.inf, np.float32)}, "NOT_FINITE", "column log_prob .* not finite"),
        ({"log_prob": np.full((3, 2), 0.5, np.float32)}, "RANGE", "column log_prob must be <= 0, got 0.5"),
        ({"action": np.full((3, 2), 2, np.int64)}, "RANGE", "column action must lie in 0..1, got 2..2"),
        ({"action": np.full((3, 2), -1, np.int64)}, "RANGE", "column action must lie in 0..1, got -1..-1"),
        ({"bonus": np.zeros((3, 2), np.float32)}, "COLUMN", "column bonus is unknown"),
        (
            {"reward": np.full((3, 2), 3e38, np.float32)},
            "OUT_OF_BOUNDS",
            r"column reward must lie within ±1e\+08 \(experience.max_reward\), got 3e\+38..3e\+38",
        ),
        ({"reward": np.full((3, 2), -3e38, np.float32)}, "OUT_OF_BOUNDS", "column reward must lie within"),
        ({"observation": np.full((4, 2, 4), 1e30, np.float32)}, "OUT_OF_BOUNDS", "column observation must lie within"),
        ({"log_prob": np.full((3, 2), -1e3, np.float32)}, "OUT_OF_BOUNDS", r"column log_prob must lie within ±100 "),
    ],
)
def test_a_column_that_does_not_fit_is_refused_by_name(bad, reason, sentence):
    q = queue()
    with pytest.raises(InvalidInput, match=sentence) as raised:
        q.put(trajectory(fragment=columns(**bad)), 5)
    assert raised.value.reason == reason
    assert q.dropped == {reason: 1}
    assert len(q) == 0
    assert balanced(q)


@pytest.mark.parametrize(("total", "steps"), [(np.nan, 3), (np.inf, 3), (1.0, -1)])
def test_episodes_that_cannot_be_are_refused(total, steps):
    episodes = EpisodeColumns(np.array([1.0, total], np.float32), np.array([1, steps], np.int64))
    q = queue()
    with pytest.raises(InvalidInput) as raised:
        q.put(Trajectory("r", "a", 1, 1, 5, Fragment(columns(), episodes)), 5)
    assert raised.value.reason == "EPISODES"
    assert balanced(q)


def test_a_missing_column_is_refused_by_name():
    fragment = columns()
    del fragment["valid"]
    with pytest.raises(InvalidInput, match="column valid is missing"):
        queue().put(trajectory(fragment=fragment), 5)


@pytest.mark.parametrize(
    ("bad", "reason", "sentence"),
    [
        ({"version": 6}, "UNKNOWN_POLICY_VERSION", r"version 6 is unknown; this learner published 3\.\.5"),
        ({"version": 2}, "UNKNOWN_POLICY_VERSION", r"version 2 is unknown; this learner published 3\.\.5"),
        ({"version": 0}, "UNKNOWN_POLICY_VERSION", "version 0 is unknown"),
        ({"run": "other"}, "UNKNOWN_RUN", "run 'other' is not trained here; this learner trains 'r'"),
    ],
)
def test_a_trajectory_of_another_policy_is_refused(bad, reason, sentence):
    with pytest.raises(FailedPrecondition, match=sentence) as raised:
        queue().put(trajectory(**bad), 5)
    assert raised.value.reason == reason


def test_a_trajectory_past_the_lag_limit_is_refused_with_the_limit():
    q = queue(lag=1)
    q.put(trajectory(1, version=4), 5)
    with pytest.raises(FailedPrecondition, match=r"2 versions old; the limit is 1 \(training.max_policy_lag\)"):
        q.put(trajectory(2, version=3), 5)


def test_a_trajectory_is_counted_once():
    q = queue()
    q.put(trajectory(1), 5)
    with pytest.raises(FailedPrecondition, match="trajectory 1 of actor a incarnation 1 was received before"):
        q.put(trajectory(1), 5)
    q.put(trajectory(1, actor="b"), 5)
    q.put(trajectory(1, incarnation=2), 5)
    with pytest.raises(FailedPrecondition, match="incarnation 1 was replaced by incarnation 2") as refused:
        q.put(trajectory(2, incarnation=1), 5)
    assert refused.value.metadata == {"newest_incarnation": "2"}
    assert (len(q), q.received, balanced(q)) == (3, 5, True)


def test_a_refused_trajectory_may_be_sent_again_when_it_is_mended():
    q = queue()
    with pytest.raises(InvalidInput):
        q.put(trajectory(1, fragment=columns(reward=np.ones((3, 2)))), 5)
    q.put(trajectory(1), 5)
    assert len(q) == 1


def test_a_number_long_past_the_window_is_not_taken_again():
    q = queue(most=20_000)
    for sequence in range(1, 20_000):
        q.put(trajectory(sequence), 5)
    for sequence in (1, 5_000, 19_999):
        with pytest.raises(FailedPrecondition):
            q.put(trajectory(sequence), 5)


def test_a_full_queue_refuses_with_a_hint_and_the_limit():
    q = queue(most=2)
    q.put(trajectory(1), 5)
    q.put(trajectory(2), 5)
    with pytest.raises(ResourceExhausted, match="2 trajectories are queued; that is the limit") as raised:
        q.put(trajectory(3), 5)
    assert raised.value.retry_after_seconds > 0
    assert balanced(q)


def test_what_grew_too_old_in_the_queue_is_dropped_not_trained():
    q = queue(lag=1)
    for sequence, version in enumerate([4, 4, 5], start=1):
        q.put(trajectory(sequence, version=version), 5)
    assert q.take(2, 6) is None
    assert q.dropped == {"POLICY_LAG": 2}
    taken = q.take(1, 6)
    assert [each.policy_version for each in taken] == [5]
    q.finish(1, applied=True)
    assert (q.trained, balanced(q)) == (1, True)


events = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 8), st.integers(0, 12)),
        st.tuples(st.just("take"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("publish"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(events)
def test_received_always_equals_trained_queued_and_dropped(schedule):
    q, version = queue(lag=2, most=4), 5
    for kind, first, second in schedule:
        if kind == "put":
            with contextlib.suppress(FleetError):
                q.put(trajectory(first, version=second), version)
        elif kind == "take":
            batch = q.take(first, version)
            if batch is not None:
                assert all(version - each.policy_version <= 2 for each in batch)
                assert balanced(q)
                q.finish(len(batch), applied=second)
        else:
            version += 1
        assert balanced(q)
        assert len(q) <= 4
