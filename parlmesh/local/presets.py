"""Settings that are known to learn, by name: those of the clone, or those that came with the installation."""

from importlib.resources import files
from pathlib import Path

from parlmesh.errors import NotFound


def preset_names() -> list[str]:
    """What `parlmesh up --config NAME` knows."""
    return sorted(file.stem for file in _folder().glob("*.yaml"))


def presets_of(environment: str) -> list[str]:
    """Those that train it."""
    import yaml

    found = {name: yaml.safe_load((_folder() / f"{name}.yaml").read_text())["training"] for name in preset_names()}
    return [name for name, training in found.items() if training.get("environment", {}).get("id") == environment]


def settings_file(given: Path) -> Path:
    """The file itself, or the preset of that name; a path that is neither is left to the one who reads it."""
    if given.exists() or given.suffix or len(given.parts) > 1:
        return given
    preset = _folder() / f"{given.name}.yaml"
    if preset.exists():
        return preset
    raise NotFound(f"--config {given} is no file and no preset; presets are {', '.join(preset_names())}")


def _folder() -> Path:
    package = Path(str(files("parlmesh")))
    installed = package / "presets"
    return installed if installed.is_dir() else package.parent / "presets"
