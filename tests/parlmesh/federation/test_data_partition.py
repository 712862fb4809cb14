import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.federation.data_partition import partition

LABELS = np.random.default_rng(0).integers(0, 10, 600)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["iid", "dirichlet", "by_label"]), st.integers(1, 60), st.integers(0, 1000))
def test_every_sample_has_one_node_and_every_node_has_samples(kind, nodes, seed):
    parts = partition(LABELS, nodes, kind, seed)
    assert sorted(np.concatenate(parts)) == list(range(600))
    assert min(len(part) for part in parts) >= 2
    again = partition(LABELS, nodes, kind, seed)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


def test_a_small_alpha_makes_nodes_differ_more():
    def skew(parts):
        return np.mean([np.bincount(LABELS[part], minlength=10).max() / len(part) for part in parts])

    assert skew(partition(LABELS, 10, "dirichlet", 1, alpha=0.1)) > skew(
        partition(LABELS, 10, "dirichlet", 1, alpha=100)
    )


def test_shards_give_few_labels_each():
    parts = partition(LABELS, 10, "by_label", 3, labels_per_node=2)
    assert max(len(np.unique(LABELS[part])) for part in parts) <= 4


@pytest.mark.parametrize(("nodes", "kind"), [(400, "iid"), (10, "sorted"), (0, "iid")])
def test_impossible_partitions_are_refused(nodes, kind):
    with pytest.raises(InvalidInput):
        partition(LABELS, nodes, kind, 0)
