"""A node's report that it cannot open another node's sealed shares, so the learner knows which node blocks the sum."""

import re

_SENTENCE = "the shares that node {} sealed cannot be opened"
_FOUND = re.compile(_SENTENCE.format(r"(\S{1,200})"))


def accuse(node: str) -> str:
    """The message that accuses a node."""
    return _SENTENCE.format(node)


def accused_in(text: str) -> str:
    """The accused node in a failure message; empty if there is none."""
    found = _FOUND.search(text)
    return found[1] if found else ""
