"""Writes YAML files: multi-line texts as blocks, no aliases, and a header that says where they come from."""

from collections.abc import Iterable
from typing import Any

import yaml

MADE = "# Written by `parlmesh deploy render`; change its settings rather than this file.\n"


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        # Lists are indented below their key, as kubectl and Helm do.
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def dump(document: Any, *, header: str = MADE) -> str:
    """Dumps one document."""
    return header + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)


def dump_all(documents: Iterable[Any], *, header: str = MADE) -> str:
    """Dumps several documents."""
    return header + "---\n".join(dump(document, header="") for document in documents)
