"""Every path, import and world that the README, the documents and the folders' READMEs name exists."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = [
    *("scheduler", "scheduler/core", "learner", "learner/runs", "learner/federation", "actor"),
    *("parlmesh", "parlmesh/client", "parlmesh/rpc", "parlmesh/cli", "parlmesh/mesh", "tools", "tests"),
]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / folder / "README.md" for folder in FOLDERS),
]
TOPS = "actor|deploy|docs|examples|learner|parlmesh|presets|protos|scheduler|tests|tools"
# Created by use, or the id of a world.
MADE = re.compile(r"^runs/|<|\*|-v\d$")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    missing = []
    for named in re.findall(rf"`((?:{TOPS})/[\w./-]*)`", text):
        if not MADE.search(named) and not any((folder / named).exists() for folder in (ROOT, page.parent)):
            missing.append(named)
    for linked in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if "://" not in linked and not (page.parent / linked).exists():
            missing.append(linked)
    if page.name == "README.md" and page.parent != ROOT:
        missing += [
            each
            for each in re.findall(r"`([\w/]+\.py|[\w/]+/)`", text)
            if not any((folder / each).exists() for folder in (page.parent, ROOT, ROOT / "tests"))
        ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_everything_a_page_imports_exists(page: Path) -> None:
    for module, names in re.findall(r"from (parlmesh[\w.]*) import ([\w, ]+\w)", page.read_text()):
        for name in re.split(r",\s*", names):
            assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


def test_every_environment_that_a_command_or_preset_names_is_registered() -> None:
    import gymnasium

    texts = [page.read_text() for page in [*PAGES, *sorted((ROOT / "presets").glob("*.yaml"))]]
    named = {
        each
        for text in texts
        for each in re.findall(r"""(?:--environment |--env |\bid"?: ?"?)([A-Z][A-Za-z0-9]+-v\d+)""", text)
    }
    assert len(named) > 5
    examples = {
        each for path in (ROOT / "examples").rglob("*.py") for each in re.findall(r"\w+-v\d+", path.read_text())
    }
    assert sorted(named - set(gymnasium.registry) - examples) == []


@pytest.mark.parametrize(("heading", "most"), [("## The life of a task", 40), ("## The life of a trajectory", 28)])
def test_the_walks_name_functions_that_are_there_and_count_their_hops_right(heading: str, most: int) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    walk = page.split(heading + "\n")[1].split("\n## ")[0]
    steps = re.findall(r"^ *(\d+|·) (\S+\.py) +(\S+)$", walk, re.MULTILINE)
    missing = [f"{file} {name}" for _, file, name in steps if name not in _functions(ROOT / file)]
    assert missing == []
    hops = [int(mark) for mark, _, _ in steps if mark != "·"]
    assert hops == list(range(1, len(hops) + 1))
    assert len(hops) <= most
    assert f"That is {len(hops)} hops, and {len(steps) - len(hops)} times something is asked." in walk


def _functions(file: Path) -> set[str]:
    """Names of a module's functions; methods as Class.name."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        found |= {f"{prefix}{each.name}" for each in inside if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return found
