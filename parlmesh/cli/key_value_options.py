"""Options of the form KEY=VALUE."""

from collections.abc import Sequence

from parlmesh.errors import InvalidInput


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Parses the values of a repeatable option."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidInput(f'{option} takes KEY=VALUE, got "{text}"')
        found[key] = value
    return found
