"""Images are kept once and read as they were, whatever was shared."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.errors import ConfigError
from parlmesh.training.replay.frames import Frames

STACK = 4


def stacks(rng, rows, envs, shift=1):
    """Observations [T, E, C, 2, 3] of stacks that move on, and start anew now and then."""
    seen = np.empty((rows, envs, STACK * shift, 2, 3), np.uint8)
    for row in range(rows):
        new = rng.integers(0, 256, (envs, shift, 2, 3), np.uint8)
        first = np.ones(envs, np.bool_) if row == 0 else rng.random(envs) < 0.2
        if row:
            seen[row, :, :-shift] = seen[row - 1, :, shift:]
        seen[row, :, -shift:] = new
        seen[row, first] = np.tile(new[first], (1, STACK, 1, 1))
    return seen


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(2, 12), envs=st.integers(1, 4), shift=st.sampled_from([1, 3]))
def test_observations_are_read_as_they_were_added(seed, rows, envs, shift):
    rng = np.random.default_rng(seed)
    frames = Frames((STACK * shift, 2, 3), "uint8", 1_000, shift=shift)
    for end in (1, 2):
        seen = stacks(rng, rows, envs, shift)
        ids = frames.add(seen, end)
        np.testing.assert_array_equal(frames.read(ids), seen)


def test_a_stack_that_moves_on_costs_one_image_a_step():
    frames = Frames((STACK, 2, 3), "uint8", 1_000, shift=1)
    rng = np.random.default_rng(0)
    frames.add(stacks(rng, 50, 2), 1)
    assert frames.added == 2 * 50


def test_images_that_share_nothing_are_kept_whole():
    frames = Frames((3, 2, 3), "float32", 1_000, shift=1)
    seen = np.random.default_rng(0).normal(size=(5, 2, 3, 2, 3)).astype(np.float32)
    np.testing.assert_array_equal(frames.read(frames.add(seen, 1)), seen)
    assert frames.added == 5 * 2 * 3


def test_steps_whose_images_are_gone_are_named_by_whole_fragments():
    frames = Frames((1, 2, 3), "uint8", 25, shift=1)
    rng = np.random.default_rng(0)
    for end in (10, 20):
        frames.add(rng.integers(0, 256, (10, 1, 1, 2, 3), np.uint8), end)
    assert frames.forgotten() == 0
    frames.add(rng.integers(0, 256, (10, 1, 1, 2, 3), np.uint8), 30)
    assert frames.forgotten() == 10


def test_undo_brings_the_overwritten_images_back():
    frames, rng = Frames((1, 2, 3), "uint8", 25, shift=1), np.random.default_rng(0)
    seen = rng.integers(0, 256, (20, 1, 1, 2, 3), np.uint8)
    ids = frames.add(seen, 20)
    before = frames.tensors()
    frames.begin()
    frames.add(rng.integers(0, 256, (20, 1, 1, 2, 3), np.uint8), 40)
    assert not np.array_equal(frames.read(ids), seen)
    frames.undo()
    after = frames.tensors()
    np.testing.assert_array_equal(frames.read(ids), seen)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_trajectory_with_more_images_than_there_is_room_for_is_refused_by_both_numbers():
    frames = Frames((1, 2, 3), "uint8", 5, shift=1)
    with pytest.raises(ConfigError, match=r"has 10 different images, and the replay has room for 5"):
        frames.add(np.random.default_rng(0).integers(0, 256, (10, 1, 1, 2, 3), np.uint8), 10)
