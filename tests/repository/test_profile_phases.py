"""A profile names functions as text: each must still be there under that name."""

import ast
from pathlib import Path

import pytest

from actor.profile_phases import PHASES as ACTOR
from learner.profile_phases import PHASES as LEARNER
from parlmesh.telemetry.phase_profiler import Phases

ROOT = Path(__file__).parents[2]
# The standard library's, where threads wait.
FOREIGN = {"thread._worker", "runners.run"}


def functions(*folders: str) -> set[str]:
    """ "module.function" for every function of the module."""
    found = set()
    for file in (file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        nodes = ast.walk(ast.parse(file.read_text()))
        found |= {f"{file.stem}.{n.name}" for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    return found


@pytest.mark.parametrize(("service", "phases"), [("actor", ACTOR), ("learner", LEARNER)])
def test_every_function_that_a_profile_names_exists(service: str, phases: Phases) -> None:
    assert phases.functions.keys() - functions(service, "parlmesh") - FOREIGN == set()


def test_a_serial_run_shows_the_time_of_its_environments() -> None:
    assert {LEARNER.functions["vector.step"], LEARNER.functions["numpy_acting.act"]} == {"environment step", "act"}
    assert "collecting" in LEARNER.threads
