"""Tool calls in a language model's text: <tool_call>{"name": …, "arguments": {…}}</tool_call>.

Qwen, Hermes and others are trained on this form. A model's text is not trusted: it is parsed as JSON, validated, and
answered with a sentence when it is wrong.
"""

import json
from dataclasses import dataclass

OPENING, CLOSING = "<tool_call>", "</tool_call>"
LONGEST_CALL = 20_000
ARGUMENTS = {
    "create_subagent": ("name", "system_prompt"),
    "assign_task": ("agent", "prompt"),
    "wait": (),
    "finish": ("answer",),
}
"""Tools by name, with their arguments; all are strings."""
_OPTIONAL = ("system_prompt", "answer")


@dataclass(frozen=True)
class Call:
    """A tool call, or what is wrong with it."""

    name: str
    arguments: dict[str, str]
    error: str = ""


def next_call(text: str) -> tuple[Call | None, str]:
    """The first complete call in a text and what follows it; None if there is no complete call yet."""
    _, opening, rest = text.partition(OPENING)
    body, closing, after = rest.partition(CLOSING)
    if not opening or not closing:
        if len(rest) > LONGEST_CALL:
            return Call("", {}, f"a call has at most {LONGEST_CALL} characters"), ""
        return None, text
    return _parsed(body), after


def _parsed(body: str) -> Call:
    if len(body) > LONGEST_CALL:
        return Call("", {}, f"a call has at most {LONGEST_CALL} characters")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return Call("", {}, "a call must be a JSON object")
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return Call("", {}, "a call must be a JSON object with a name")
    name, given = found["name"], found.get("arguments", {})
    if name not in ARGUMENTS:
        return Call("", {}, f"there is no tool {name[:40]!r}; there are {', '.join(ARGUMENTS)}")
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        return Call("", {}, f"arguments of {name} must be a JSON object of strings")
    missing = [each for each in ARGUMENTS[name] if each not in given and each not in _OPTIONAL]
    unknown = [each for each in given if each not in ARGUMENTS[name]]
    if missing or unknown:
        wanted = ", ".join(ARGUMENTS[name]) or "no arguments"
        return Call("", {}, f"{name} takes {wanted}; got {', '.join(sorted(given))[:100] or 'none'}")
    return Call(name, dict(given))


def written(tool: str, /, **arguments: str) -> str:
    """A call as a model writes it."""
    return f"{OPENING}{json.dumps({'name': tool, 'arguments': arguments}, separators=(',', ':'))}{CLOSING}"
