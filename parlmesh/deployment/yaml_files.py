"""YAML files as they are written: long texts as blocks, no aliases, a first line that says where they come from."""

from collections.abc import Iterable
from typing import Any

import yaml

MADE = "# Written by `parlmesh deploy render`; change its settings rather than this file.\n"


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        # Lists stand under their key with an indent, as kubectl's and Helm's own do.
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def dump(document: Any, *, header: str = MADE) -> str:
    """One document."""
    return header + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)


def dump_all(documents: Iterable[Any], *, header: str = MADE) -> str:
    """Several, one after the other."""
    return header + "---\n".join(dump(document, header="") for document in documents)
