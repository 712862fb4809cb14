"""Tests that pages name exist, and every row of the fault table in docs/reliability.md names one."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
OTHERS = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("scale", "mapek"))
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE + OTHERS)))
ROWS = re.findall(r"^\| (\d+) \|(.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_test_that_the_page_names_exists(path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_row_is_there_once_and_names_a_test() -> None:
    assert [int(number) for number, _ in ROWS] == list(range(1, 39))
    assert [number for number, text in ROWS if "`tests/" not in text] == []


def test_every_file_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:tools|tests|parlmesh|scheduler)/[\w./]+\.\w+)", PAGE)
    assert [path for path in named if not (ROOT / path).exists()] == []
