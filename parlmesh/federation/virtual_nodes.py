"""Nodes that one process stands for: for simulations of many. Named after their host, which alone has an identity."""

from collections.abc import Mapping

# No name of an actor or an identity has it.
_SEPARATOR = "#"
LABEL = "virtual_nodes"
"""Label by which an actor says how many nodes it stands for."""


def nodes_of(host: str, count: int) -> list[str]:
    """The nodes that a host stands for; 0 = itself."""
    return [f"{host}{_SEPARATOR}{index}" for index in range(count)] if count else [host]


def host_of(node_id: str) -> str:
    """The node whose actor runs the tasks of a node: itself, unless it is virtual."""
    return node_id.partition(_SEPARATOR)[0]


def count_in(labels: Mapping[str, str]) -> int:
    """How many nodes an actor with these labels stands for; 0 = itself."""
    text = labels.get(LABEL, "")
    return int(text) if text.isascii() and text.isdigit() else 0
