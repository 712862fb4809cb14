"""Makes untrusted text harmless in terminals and logs."""

import re

# The characters that str.isprintable() refuses: control characters (C0, C1), formatting such as bidi overrides and
# zero-width ones, line and paragraph separators, lone surrogates, private use and unassigned code points.
_SUSPECT = re.compile(r"[^\x20-\x7e]")


def visible(text: str) -> str:
    """The text with every unprintable character written as its escape: "\\x1b", "\\u202e"."""
    return text if text.isprintable() else _SUSPECT.sub(_escape, text)


def visible_lines(text: str) -> str:
    """`visible` for text of several lines; keeps the line breaks."""
    return "\n".join(visible(line) for line in text.split("\n"))


def indented(text: str) -> str:
    """Indents all lines but the first, so that untrusted text cannot imitate the program's own lines."""
    return text.replace("\n", "\n    ")


def visible_json(line: str) -> str:
    """A JSON document with every unprintable character written as a JSON escape; its meaning is unchanged."""
    return line if line.isprintable() else _SUSPECT.sub(_escape_json, line)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() else character.encode("unicode_escape", "replace").decode()


def _escape_json(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
