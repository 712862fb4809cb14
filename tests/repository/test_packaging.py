"""What the wheel holds, what a binary costs to ask for help, and which names must stay ours."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("actor", "learner", "scheduler")


def packages_in_folders():
    found = set()
    for top in ("parlmesh", *SERVICES):
        for file in (ROOT / top).rglob("__init__.py"):
            dotted = ".".join(file.parent.relative_to(ROOT).parts)
            found.add(dotted if top == "parlmesh" else f"parlmesh.{dotted}")
    return found


def test_every_package_is_in_the_wheel():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["tool"]["setuptools"]["packages"]) == packages_in_folders()


@pytest.mark.parametrize("name", ["learner", "actor", "scheduler", "tools", "protos"])
def test_no_dependency_installs_a_package_of_a_name_we_use_in_the_repository(name):
    installed = importlib.metadata.packages_distributions().get(name, [])
    assert [distribution for distribution in installed if distribution != "parlmesh"] == []


def modules_after(statement):
    code = f"{statement}\nimport sys; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(output.stdout.split())


HEAVY = {"torch", "grpc", "gymnasium", "tensorboard", "matplotlib", "safetensors"}


@pytest.mark.parametrize(
    "module", ["learner.__main__", "actor.__main__", "scheduler.__main__", "parlmesh.cli.__main__"]
)
def test_asking_a_binary_for_help_loads_nothing_heavy(module):
    assert modules_after(f"import {module}") & HEAVY == set()


@pytest.mark.parametrize("module", ["actor.build", "learner.build", "scheduler.build", "parlmesh.client"])
def test_no_service_loads_torch_unless_it_is_asked_to(module):
    assert "torch" not in modules_after(f"import {module}")


@pytest.mark.e2e
@pytest.mark.parametrize("module", ["learner", "actor", "scheduler", "parlmesh.cli"])
def test_every_binary_has_help(module):
    answer = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert answer.returncode == 0
    assert "usage" in answer.stdout.lower()


@pytest.mark.parametrize("module", ["learner", "actor", "scheduler"])
@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("lisen.port=1", "lisen"),
        ("log.format=xml", "json, pretty"),
    ],
)
def test_a_bad_setting_is_refused_by_name_before_anything_starts(module, setting, sentence):
    answer = subprocess.run(
        [sys.executable, "-m", module, "--set", setting], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert answer.returncode == 2
    assert sentence in answer.stderr
    assert "Traceback" not in answer.stderr
