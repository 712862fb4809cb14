"""Splits one data set among many nodes: evenly, by a Dirichlet draw per label, or a few labels each."""

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

PARTITIONS = ("iid", "dirichlet", "by_label")
# Most draws until every node has enough samples; a very small alpha would never get there.
_MOST_DRAWS = 200


def partition(
    labels: Array, nodes: int, kind: str, seed: int, *, alpha: float = 0.3, labels_per_node: int = 2, least: int = 2
) -> list[Array]:
    """Indices of each node's samples: disjoint, complete, and at least `least` per node."""
    if not 1 <= nodes * least <= len(labels):
        raise InvalidInput(f"{len(labels)} samples cannot give {nodes} nodes at least {least} each")
    rng = np.random.default_rng([seed, nodes])
    if kind == "iid":
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), nodes)]
    if kind == "dirichlet":
        return _dirichlet(labels, nodes, alpha, least, rng)
    if kind == "by_label":
        return _by_label(labels, nodes, labels_per_node, rng)
    raise InvalidInput(f"partition must be one of {', '.join(PARTITIONS)}, got {kind!r}")


def _dirichlet(labels: Array, nodes: int, alpha: float, least: int, rng: np.random.Generator) -> list[Array]:
    """Splits each label among the nodes in proportions drawn from Dirichlet(alpha) (Hsu et al. 2019)."""
    if alpha <= 0.0:
        raise InvalidInput(f"alpha must be > 0, got {alpha}")
    for _ in range(_MOST_DRAWS):
        parts: list[list[Array]] = [[] for _ in range(nodes)]
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            cuts = (np.cumsum(rng.dirichlet(np.full(nodes, alpha)))[:-1] * len(members)).astype(int)
            for part, piece in zip(parts, np.split(members, cuts), strict=True):
                part.append(piece)
        joined = [np.sort(np.concatenate(part)) for part in parts]
        short = [index for index, part in enumerate(joined) if len(part) < least]
        if not short:
            return joined
        if nodes * least * 4 > len(labels):
            return _filled(joined, least)
    return _filled(joined, least)


def _filled(parts: list[Array], least: int) -> list[Array]:
    """Moves samples from the largest parts to those with too few."""
    lists = [list(part) for part in parts]
    for part in lists:
        while len(part) < least:
            part.append(max(lists, key=len).pop())
    return [np.sort(np.array(part)) for part in lists]


def _by_label(labels: Array, nodes: int, labels_per_node: int, rng: np.random.Generator) -> list[Array]:
    """Sorts samples by label and cuts them into shards, `labels_per_node` per node (McMahan et al. 2017)."""
    shards = nodes * labels_per_node
    if labels_per_node < 1 or shards > len(labels):
        raise InvalidInput(f"{len(labels)} samples cannot be cut into {nodes} x {labels_per_node} shards")
    cut = np.array_split(np.argsort(labels, kind="stable"), shards)
    order = rng.permutation(shards)
    return [
        np.sort(np.concatenate([cut[shard] for shard in order[node * labels_per_node : (node + 1) * labels_per_node]]))
        for node in range(nodes)
    ]
