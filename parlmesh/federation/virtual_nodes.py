"""Virtual nodes, several per process, for simulations. Named after their host; only the host has an identity."""

from collections.abc import Mapping

from parlmesh.errors import InvalidInput

# Never part of an actor's name or an identity.
_SEPARATOR = "#"
_MOST_DIGITS = 6
LABEL = "virtual_nodes"
"""Label with an actor's number of virtual nodes."""


def nodes_of(host: str, count: int) -> list[str]:
    """A host's virtual nodes; count 0 = the host itself."""
    return [f"{host}{_SEPARATOR}{index}" for index in range(count)] if count else [host]


def host_of(node_id: str) -> str:
    """The node whose actor runs a node's tasks: itself, unless it is virtual."""
    return node_id.partition(_SEPARATOR)[0]


def count_in(labels: Mapping[str, str], most: int) -> int:
    """An actor's claimed number of virtual nodes; 0 = none. Raises InvalidInput above `most`.

    Labels are not trusted: the length is checked before the text is parsed.
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
