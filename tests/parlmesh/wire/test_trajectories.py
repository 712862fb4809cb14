from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from parlmesh.errors import InvalidInput, ResourceExhausted
from parlmesh.types import Episode, EpisodeColumns, Fragment, Trajectory
from parlmesh.v1 import experience_service_pb2 as pb
from parlmesh.wire import (
    tensor_to_proto,
    trajectory_from_proto,
    trajectory_from_request,
    trajectory_to_proto,
    trajectory_to_request,
)

COLUMNS = {"reward": np.arange(6, dtype=np.float32).reshape(3, 2), "valid": np.ones((3, 2), np.bool_)}
IDENTITY: dict[str, Any] = {
    "run_id": "run",
    "actor_id": "a",
    "incarnation": 3,
    "sequence": 7,
    "policy_version": 2,
    "task_id": "t",
}


def fragment(columns=COLUMNS, episodes=()):
    return Fragment(columns, episodes)


def parsed(request):
    return pb.UploadTrajectoriesRequest.FromString(request)


arrays = hnp.arrays(
    st.sampled_from([np.bool_, np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)
episodes = st.lists(st.builds(Episode, st.floats(-1e6, 1e6, width=32), st.integers(0, 1 << 40)), max_size=5)


@settings(max_examples=50)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), arrays, max_size=4), episodes)
def test_the_hand_written_request_is_the_one_protobuf_writes(columns, ended):
    found = parsed(trajectory_to_request(Trajectory(fragment=fragment(columns, ended), **IDENTITY)).request)
    for column in found.trajectory.columns:
        column.ClearField("padding")
    assert found.trajectory == trajectory_to_proto(fragment(columns, ended), **IDENTITY)
    assert found.receipts_together


def read(request):
    received = trajectory_from_request(request)
    return trajectory_from_proto(received.message, columns=received.columns)


@settings(max_examples=50)
@given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=9), arrays, max_size=4))
def test_columns_are_aligned_and_read_only_and_what_was_sent(columns):
    request = trajectory_to_request(Trajectory(fragment=fragment(columns), **IDENTITY)).request
    for name, column in read(request).fragment.columns.items():
        assert column.flags.aligned
        assert not column.flags.writeable
        assert np.array_equal(column, columns[name], equal_nan=column.dtype.kind == "f")


@pytest.mark.parametrize("shift", range(8))
def test_columns_that_an_actor_sends_are_used_where_they_lie(shift):
    identity = {**IDENTITY, "task_id": "t" * shift}
    columns = {"flag": np.ones(1001, np.bool_), "action": np.arange(1003), "reward": np.ones(1005, np.float32)}
    request = trajectory_to_request(Trajectory(fragment=fragment(columns), **identity)).request
    got = read(request).fragment.columns
    assert all(np.shares_memory(got[name], np.frombuffer(request, np.uint8)) for name in columns)


@pytest.mark.parametrize("shift", range(1, 8))
def test_columns_that_another_client_sends_are_copied_where_they_must_be(shift):
    identity = {**IDENTITY, "run_id": "r" * shift}
    columns = {"column": np.arange(5, dtype=np.float64)}
    message = pb.UploadTrajectoriesRequest(trajectory=trajectory_to_proto(fragment(columns), **identity))
    column = read(message.SerializeToString()).fragment.columns["column"]
    assert column.flags.aligned
    assert not column.flags.writeable
    assert column.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_trajectory_in_two_parts_is_joined_as_protobuf_joins_it():
    first = pb.UploadTrajectoriesRequest(trajectory=pb.Trajectory(actor_id="a", sequence=1)).SerializeToString()
    column = tensor_to_proto("column", np.arange(3))
    second = pb.UploadTrajectoriesRequest(trajectory=pb.Trajectory(sequence=7, columns=[column])).SerializeToString()
    got = read(first + second)
    assert (got.actor_id, got.sequence, got.fragment.columns["column"].tolist()) == ("a", 7, [0, 1, 2])


@settings(max_examples=50)
@given(arrays, episodes)
def test_what_was_sent_comes_back(column, ended):
    sent = Trajectory(fragment=fragment({"column": column}, ended), **IDENTITY)
    got = trajectory_from_proto(parsed(trajectory_to_request(sent).request).trajectory)
    assert np.array_equal(got.fragment.columns["column"], column, equal_nan=column.dtype.kind == "f")
    assert list(got.fragment.episodes) == ended
    assert (got.actor_id, got.incarnation, got.sequence, got.policy_version) == ("a", 3, 7, 2)


def test_a_column_that_is_not_contiguous_travels_in_order():
    column = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    got = trajectory_from_proto(
        parsed(trajectory_to_request(Trajectory(fragment=fragment({"c": column}), **IDENTITY)).request).trajectory
    )
    assert np.array_equal(got.fragment.columns["c"], column)


def test_episodes_written_by_hand_are_read_too():
    message = pb.Trajectory(actor_id="a", sequence=1, episodes=[pb.Episode(total_reward=2.5, steps=4)])
    assert list(trajectory_from_proto(message).fragment.episodes) == [Episode(2.5, 4)]


def message(returns, steps, **fields):
    return pb.Trajectory(
        actor_id="a",
        sequence=1,
        episode_returns=tensor_to_proto("episode_returns", returns),
        episode_steps=tensor_to_proto("episode_steps", steps),
        **fields,
    )


GOOD = np.zeros(2, np.float32), np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("bad", "error", "sentence"),
    [
        (message(GOOD[0], GOOD[1][:1]), InvalidInput, "2 episode_returns and 1 episode_steps"),
        (message(GOOD[0].astype(np.float64), GOOD[1]), InvalidInput, r"episode_returns must be float32\[N\]"),
        (message(GOOD[0], GOOD[1].reshape(1, 2)), InvalidInput, r"episode_steps must be int64\[N\], got int64\[1, 2\]"),
        (message(*GOOD, episodes=[pb.Episode(steps=1)]), InvalidInput, "both episodes and episode_returns"),
        (
            message(np.zeros(100_001, np.float32), np.zeros(100_001, np.int64)),
            ResourceExhausted,
            "100001 episodes; the limit is 100000",
        ),
    ],
)
def test_episodes_that_do_not_fit_together_are_refused(bad, error, sentence):
    with pytest.raises(error, match=sentence):
        trajectory_from_proto(bad)


def test_columns_of_episodes_read_as_a_sequence():
    columns = EpisodeColumns(np.array([1.0, 2.0, 3.0], np.float32), np.array([4, 5, 6]))
    assert (len(columns), columns[-1], list(columns[1:])) == (3, Episode(3.0, 6), [Episode(2.0, 5), Episode(3.0, 6)])
    assert EpisodeColumns.of(columns) is columns
    assert list(EpisodeColumns.of([Episode(1.5, 2)])) == [Episode(1.5, 2)]


def test_when_and_how_long_it_was_collected_travels_with_it():
    timing: dict[str, Any] = {"collect_time": 1_700_000_000.25, "collect_seconds": 0.5, "waited_seconds": 0.125}
    sent = Trajectory(fragment=fragment(), **IDENTITY, **timing)
    got = trajectory_from_proto(parsed(trajectory_to_request(sent).request).trajectory)
    assert {name: getattr(got, name) for name in timing} == timing


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e300])
def test_times_that_cannot_be_are_refused(seconds):
    with pytest.raises(InvalidInput, match=r"waited_seconds must lie in 0\.\.1e"):
        trajectory_from_proto(pb.Trajectory(actor_id="a", sequence=1, waited_seconds=seconds))
