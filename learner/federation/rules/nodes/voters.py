"""Which nodes have a vote: one per host, however many nodes it claims, unless the operator vouches for them. Pure."""

from collections.abc import Sequence

import numpy as np

from parlmesh.federation.config import FederationConfig
from parlmesh.federation.update_blocks import Updates
from parlmesh.federation.virtual_nodes import host_of
from parlmesh.types import Array

from ..records import Counted


def voter_of(node_id: str, config: FederationConfig) -> str:
    """The voter that a node's updates count for."""
    vouched, host = config.selection.virtual_voters, host_of(node_id)
    return node_id if vouched is True or (vouched and host in vouched) else host


def rows_of_voters(names: Sequence[str]) -> dict[str, list[int]]:
    """The rows of each voter, in the order in which voters first appear."""
    found: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        found.setdefault(name, []).append(row)
    return found


def votes_of(updates: Updates, counted: Sequence[Counted]) -> Updates:
    """One row for each voter: the weighted mean of its updates. Returns `updates` itself if every voter has one."""
    rows = rows_of_voters([each.voter or each.node_id for each in counted])
    if len(rows) == len(counted):
        return updates
    weights = np.array([each.weight for each in counted])
    return _Votes(updates, [(members, weights[members] / weights[members].sum()) for members in rows.values()])


class _Votes:
    def __init__(self, updates: Updates, voters: Sequence[tuple[list[int], Array]]) -> None:
        self._updates = updates
        self._voters = voters

    @property
    def count(self) -> int:
        return len(self._voters)

    @property
    def size(self) -> int:
        return self._updates.size

    def block(self, start: int, stop: int) -> Array:
        """[voters, stop - start]"""
        block = self._updates.block(start, stop)
        votes = [shares @ block[members].astype(np.float64) for members, shares in self._voters]
        return np.stack(votes).astype(np.float32)
