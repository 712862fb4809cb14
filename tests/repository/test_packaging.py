"""The contents of the wheel, the cost of --help, and the names that must stay ours."""

import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
import zipfile
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
    data = {"parlmesh.presets", "parlmesh.protos"}
    assert set(project["tool"]["setuptools"]["packages"]) == packages_in_folders() | data


@pytest.mark.e2e
def test_the_wheel_brings_presets_and_the_contract(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(tmp_path)]
    # Build from a copy: a build leaves folders in the sources.
    sources = tmp_path / "sources"
    for name in ("parlmesh", "presets", "protos", *SERVICES):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, sources)
    built = subprocess.run([*command, str(sources)], capture_output=True, text=True, timeout=110)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"parlmesh/presets/{file.name}" for file in (ROOT / "presets").glob("*.yaml")} <= names
    assert {f"parlmesh/protos/{file.name}" for file in (ROOT / "protos/parlmesh/v1").glob("*.proto")} <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"parlmesh"}


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
