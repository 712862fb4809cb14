"""Sums of words are weighted means within the stated error."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.federation.aggregators import joint_update, mean
from parlmesh.federation.secure.fixed_point import FixedPoint
from parlmesh.federation.update_blocks import MemoryUpdates


@given(st.integers(1, 40), st.sampled_from([1e-3, 1.0, 4.0, 1e4]), st.integers(1, 1_000_000), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_the_mean_of_a_sum_of_words_is_fedavgs_within_the_stated_error(
    nodes: int, largest: float, heaviest: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    numbers = FixedPoint(nodes, largest, heaviest)
    updates = {f"{k:02d}": rng.uniform(-largest, largest, 50).astype(np.float32) for k in range(nodes)}
    # The largest numbers of all nodes together must fit into the words.
    edge = np.nextafter(np.float32(largest), np.float32(0.0))
    for vector in updates.values():
        vector[:2] = edge, -edge
    weights = [int(weight) for weight in rng.integers(1, heaviest + 1, nodes)]
    total = np.zeros(51, np.uint32)
    for vector, weight in zip(updates.values(), weights, strict=True):
        total += numbers.words(vector, weight)
    weight = numbers.weight(total, nodes)
    assert weight == sum(weights)
    plain = joint_update(MemoryUpdates(updates), mean([float(each) for each in weights]))
    assert np.abs(numbers.mean(total[1:], weight) - plain).max() <= numbers.error(nodes, weight) * (1 + 1e-6)


@pytest.mark.parametrize("value", [4.1, -4.1, np.nan, np.inf])
def test_a_number_that_has_no_place_in_a_word_is_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match=r"the limit is 4 \(secure.largest_value\)"):
        FixedPoint(10, 4.0, 1).words(np.array([0.0, value], np.float32), 1)


def test_a_sum_with_masks_left_in_it_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the masks do not cancel"):
        FixedPoint(10, 4.0, 100).weight(np.array([0x9E3779B9], np.uint32), 10)
