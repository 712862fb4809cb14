"""A vocabulary of a few text pieces that can express every tool call, for the tiny models built here.

Its grammar decides which piece may follow, like constrained decoding for large models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from parlmesh.errors import InvalidInput

AGENTS = tuple(f"agent-{number}" for number in range(8))
ITEMS = tuple(f"item-{number}" for number in range(8))
PAD, CREATE, ASSIGN, PROMPT, CLOSE, WAIT, FINISH = range(7)
_PIECES = (
    "",
    '<tool_call>{"name":"create_subagent","arguments":{"name":"',
    '<tool_call>{"name":"assign_task","arguments":{"agent":"',
    '","prompt":"',
    '"}}</tool_call>',
    '<tool_call>{"name":"wait","arguments":{}}</tool_call>',
    '<tool_call>{"name":"finish","arguments":{}}</tool_call>',
    "\n",
    "Do these:",
    " ",
    "done ",
    "failed ",
    "refused",
    "ok",
)
PIECES = (*_PIECES, *AGENTS, *ITEMS)
_FIRST_AGENT, _FIRST_ITEM = len(_PIECES), len(_PIECES) + len(AGENTS)
_BY_LENGTH = sorted((piece for piece in PIECES if piece), key=len, reverse=True)
_NUMBERS = {piece: number for number, piece in enumerate(PIECES)}


@dataclass(frozen=True)
class State:
    """The grammar's view of a job: free names, idle sub-agents, and items that are neither done nor assigned."""

    free_names: Sequence[str]
    idle: Sequence[str]
    open_items: Sequence[str]
    assigned: bool


def encode(text: str) -> list[int]:
    """The text's piece numbers; raises InvalidInput for text outside the vocabulary."""
    numbers = []
    while text:
        piece = next((each for each in _BY_LENGTH if text.startswith(each)), None)
        if piece is None:
            raise InvalidInput(f"the vocabulary has no piece for {text[:40]!r}")
        numbers.append(_NUMBERS[piece])
        text = text[len(piece) :]
    return numbers


def decode(numbers: Sequence[int]) -> str:
    """The text of these pieces."""
    return "".join(PIECES[number] for number in numbers)


def allowed(begun: Sequence[int], state: State) -> list[int]:
    """Pieces that may follow the beginning of a call."""
    if not begun:
        first = [FINISH]
        if state.free_names:
            first.append(CREATE)
        if state.idle and state.open_items:
            first.append(ASSIGN)
        return [*first, WAIT] if state.assigned else first
    if begun[0] == CREATE:
        return _names(state.free_names) if len(begun) == 1 else [CLOSE]
    return [_names(state.idle), [PROMPT], _names(state.open_items), [CLOSE]][min(len(begun) - 1, 3)]


def _names(names: Sequence[str]) -> list[int]:
    return [_NUMBERS[name] for name in names]
