"""A test lies in the folder of its source, named after a module there or after a behaviour that is listed here."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    file.relative_to(ROOT / "tests")
    for top in ("scheduler", "learner", "actor", "parlmesh")
    for file in (ROOT / "tests" / top).rglob("test_*.py")
)
# Named after what several modules of the folder do together.
BEHAVIOURS = {
    "scheduler/core": {"allowances", "commands", "dispatch", "state_machine"},
    "scheduler/simulation": {"simulation"},
    "scheduler/store": {"damage", "stores"},
    "learner/experience": {"experience", "largest_values"},
    "learner/federation": {"canaries", "liars", "steering"},
    "learner/runs": {"differing_play", "resume"},
    "actor/federation": {"model_watch"},
    "actor/session": {"messages", "running"},
    "parlmesh/cli": {"main"},
    "parlmesh/client": {"imports", "run_order"},
    "parlmesh/client/connection": {"unclaimed_outcomes"},
    "parlmesh/config": {"strays"},
    "parlmesh/deployment": {"containers"},
    "parlmesh/federation/tasks": {"federated_ppo", "tasks"},
    "parlmesh/orchestration": {"community_version", "docs"},
    "parlmesh/policies": {"networks", "parity", "values"},
    "parlmesh/rpc": {"docs"},
    "parlmesh/security": {"certs_command"},
    "parlmesh/testing": {"testing"},
    "parlmesh/training": {"lag"},
}


def _is_named_after_a_source(file: Path) -> bool:
    source = ROOT / file.parent / file.stem.removeprefix("test_")
    return source.with_suffix(".py").exists() or source.is_dir()


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_test_file_is_where_its_source_is(file: Path) -> None:
    assert (ROOT / file.parent).is_dir(), f"there is no folder {file.parent}"
    listed = BEHAVIOURS.get(file.parent.as_posix(), set())
    assert _is_named_after_a_source(file) or file.stem.removeprefix("test_") in listed


def test_the_list_has_no_name_that_needs_no_place_in_it() -> None:
    needed = {file for file in FILES if not _is_named_after_a_source(file)}
    listed = {Path(folder) / f"test_{name}.py" for folder, names in BEHAVIOURS.items() for name in names}
    assert listed == needed
