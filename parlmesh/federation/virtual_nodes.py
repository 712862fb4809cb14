"""Nodes that one process stands for: for simulations of many. Named after their host, which alone has an identity."""

from collections.abc import Mapping

from parlmesh.errors import InvalidInput

# No name of an actor or an identity has it.
_SEPARATOR = "#"
_MOST_DIGITS = 6
LABEL = "virtual_nodes"
"""Label by which an actor says how many nodes it stands for."""


def nodes_of(host: str, count: int) -> list[str]:
    """The nodes that a host stands for; 0 = itself."""
    return [f"{host}{_SEPARATOR}{index}" for index in range(count)] if count else [host]


def host_of(node_id: str) -> str:
    """The node whose actor runs the tasks of a node: itself, unless it is virtual."""
    return node_id.partition(_SEPARATOR)[0]


def count_in(labels: Mapping[str, str], most: int) -> int:
    """How many nodes an actor says that it stands for; 0 = itself. InvalidInput unless it is at most `most`.

    Labels are claims: the number is not made before its length is known to be harmless.
    """
    text = labels.get(LABEL, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise InvalidInput(f"label {LABEL} must be a whole number of at most {_MOST_DIGITS} digits", reason="LABEL")
    count = int(text)
    if count > most:
        allowed = f"at most {most} are" if most else "none are"
        raise InvalidInput(
            f"label {LABEL} is {count}; {allowed} allowed here (selection.virtual_nodes)", reason="VIRTUAL_NODES"
        )
    return count
