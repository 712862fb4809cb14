"""What a node says that cannot open what another sealed for it: so the learner knows who keeps all from a sum."""

import re

_SENTENCE = "the shares that node {} sealed cannot be opened"
_FOUND = re.compile(_SENTENCE.format(r"(\S{1,200})"))


def accuse(node: str) -> str:
    """The sentence about a node."""
    return _SENTENCE.format(node)


def accused_in(text: str) -> str:
    """The node that a failure is about; empty when it is about none."""
    found = _FOUND.search(text)
    return found[1] if found else ""
