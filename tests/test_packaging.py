"""What the wheel holds, and that nobody else's package stands where the services do."""

import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ("actor", "learner", "scheduler")


def test_the_wheel_lists_every_package_there_is() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = [path.parent for top in ("parlmesh", *SERVICES) for path in (ROOT / top).rglob("*.py")]
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(settings["packages"]) == {name if name.startswith("parlmesh") else f"parlmesh.{name}" for name in names}
    assert settings["package-dir"] == {f"parlmesh.{service}": service for service in SERVICES}


def test_no_dependency_installs_a_package_with_the_name_of_a_service() -> None:
    taken = metadata.packages_distributions()
    assert not {name: taken[name] for name in SERVICES if name in taken}
