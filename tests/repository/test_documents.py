"""Every path that the README, the documents and the folders' READMEs name exists."""

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
# Made by use, or the id of a world.
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


def test_the_hops_of_the_walks_are_counted_right() -> None:
    """A walk's last range ends where its sum says, and no range leaves a hop out."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    for heading in ("## The life of a task", "## The life of a trajectory"):
        walk = page.split(heading + "\n")[1].split("\n## ")[0]
        ranges = [(int(first), int(last)) for first, last in re.findall(r"\*\* \((\d+)–(\d+)\)\.", walk)]
        assert [first for first, _ in ranges] == [1, *(last + 1 for _, last in ranges[:-1])]
        assert f"That is {ranges[-1][1]} hops." in walk
