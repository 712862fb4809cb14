"""requirements.lock is whole, pinned, and agrees with constraints.txt."""

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lock import EXTRAS

ROOT = Path(__file__).parents[2]


def pinned(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    found = [re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", line) for line in lines]
    return {canonicalize_name(match[1]): match[2] for match in found if match}


LOCKED = pinned("requirements.lock")


def test_every_line_has_a_hash() -> None:
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"\S+==\S+ --hash=sha256:[0-9a-f]{64}", line), line


def test_versions_are_those_that_were_tested_together() -> None:
    constraints = pinned("constraints.txt")
    assert {name: version for name, version in LOCKED.items() if constraints.get(name) != version} == {}


def test_whatever_a_node_needs_is_in_it() -> None:
    """Follows the requirements of what is installed here."""
    wanted: list[tuple[str, tuple[str, ...]]] = [("parlmesh", ("", *EXTRAS))]
    followed: set[tuple[str, tuple[str, ...]]] = set()
    while wanted:
        name, extras = wanted.pop()
        try:
            needs = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            needs = []
        for need in needs:
            applies = need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in (*extras, ""))
            found = canonicalize_name(need.name)
            # Our own extras name others of ours.
            edge = (found, tuple(need.extras))
            if applies and edge not in followed:
                followed.add(edge)
                wanted.append(edge)
    seen = {name for name, _ in followed} - {"parlmesh"}
    assert {"grpcio", "cryptography", "typer"} <= seen
    assert seen <= set(LOCKED), sorted(seen - set(LOCKED))
