import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.algorithms.random_state import pack_random_state, restore_random_state
from parlmesh.errors import InvalidInput


@given(st.integers(0, 2**32), st.lists(st.integers(1, 40), max_size=4))
def test_a_restored_generator_goes_on_exactly_as_the_original(seed, sizes):
    original, copy = np.random.default_rng(seed), np.random.default_rng(0)
    for size in sizes:
        # 32-bit draws leave half a word over as often as not.
        original.permutation(size)
        original.random(size, dtype=np.float32)
    restore_random_state(copy, pack_random_state(original))
    np.testing.assert_array_equal(original.permutation(37), copy.permutation(37))
    np.testing.assert_array_equal(original.random(5, dtype=np.float32), copy.random(5, dtype=np.float32))
    np.testing.assert_array_equal(original.normal(size=5), copy.normal(size=5))


def test_a_state_of_another_length_is_refused():
    with pytest.raises(InvalidInput, match="a random state has 37 bytes, got 32"):
        restore_random_state(np.random.default_rng(0), np.zeros(32, np.uint8))
