import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.training.replay.sum_tree import SumTree

weights = st.floats(0.0, 100.0)


@st.composite
def writes(draw):
    """A capacity and some batches of (index, value), indices repeated at will."""
    capacity = draw(st.integers(1, 20))
    pair = st.tuples(st.integers(0, capacity - 1), weights)
    return capacity, draw(st.lists(st.lists(pair, max_size=8), max_size=6))


@given(writes())
def test_leaves_and_total_are_those_of_a_plain_list(given_writes):
    capacity, batches = given_writes
    tree, plain = SumTree(capacity), [0.0] * capacity
    for batch in batches:
        tree.set(np.array([index for index, _ in batch], np.int64), np.array([value for _, value in batch]))
        for index, value in batch:
            plain[index] = value
    np.testing.assert_array_equal(tree.leaves, plain)
    np.testing.assert_allclose(tree.total, sum(plain), rtol=1e-12)


@settings(deadline=None)
@given(st.lists(weights, min_size=1, max_size=20), st.lists(st.floats(0.0, 0.999999), min_size=1, max_size=8))
def test_a_sum_is_found_in_the_leaf_that_covers_it(values, shares):
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), np.array(values))
    if tree.total <= 0.0:
        return
    sums = np.array(shares) * tree.total
    found = tree.find(sums)
    ends = np.cumsum(values)
    for leaf, wanted in zip(found, sums, strict=True):
        assert values[leaf] > 0.0
        tolerance = 1e-9 * tree.total
        assert ends[leaf] - values[leaf] - tolerance <= wanted <= ends[leaf] + tolerance
