"""docs/errors.md says what the code does."""

import ast
import re
from pathlib import Path

import parlmesh
from parlmesh import exit_codes
from parlmesh.rpc.error_statuses import STATUS_BY_ERROR

ROOT = Path(parlmesh.__file__).parents[1]
TEXT = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
LIBRARY = ("config", "rpc", "security", "telemetry")


def rows(section: str) -> list[list[str]]:
    (_, _, body) = TEXT.partition(f"## {section}\n")
    lines = [line for line in body.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def reasons_in_source() -> set[str]:
    found = set()
    for folder in LIBRARY:
        for file in (ROOT / "parlmesh" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.keyword) and node.arg == "reason" and isinstance(node.value, ast.Constant):
                    found.add(str(node.value.value))
    return {reason for reason in found if re.fullmatch(r"[A-Z_]+", reason)}


def test_the_status_table_is_the_code_s() -> None:
    assert [tuple(row) for row in rows("Statuses")] == [
        (error.__name__, status.name, error.default_reason) for error, status in STATUS_BY_ERROR.items()
    ]


def test_the_reasons_are_those_of_the_library_and_sorted() -> None:
    written = [row[0] for row in rows("Reasons of the library")]
    assert written == sorted(reasons_in_source())


def test_the_exit_codes_are_the_code_s() -> None:
    codes = [value for name, value in vars(exit_codes).items() if name.startswith("EXIT_")]
    assert [int(row[0]) for row in rows("Exit codes")] == sorted(codes)
