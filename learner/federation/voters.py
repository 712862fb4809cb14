"""Who has a vote: a host, however many nodes it says it is, unless the operator vouches for all hosts. Pure."""

from parlmesh.federation.config import FederationConfig
from parlmesh.federation.virtual_nodes import host_of


def voter_of(node_id: str, config: FederationConfig) -> str:
    """The voter that a node's updates count for."""
    return node_id if config.selection.virtual_voters else host_of(node_id)
