"""Settings known to learn, by name, from the clone or from the installation."""

from importlib.resources import files
from pathlib import Path

from parlmesh.errors import NotFound


def preset_names() -> list[str]:
    """Names that `parlmesh up --config NAME` accepts."""
    return sorted(file.stem for file in _folder().glob("*.yaml"))


def presets_of(environment: str) -> list[str]:
    """Names of the presets that train on an environment."""
    import yaml

    found = {name: yaml.safe_load((_folder() / f"{name}.yaml").read_text())["training"] for name in preset_names()}
    return [name for name, training in found.items() if training.get("environment", {}).get("id") == environment]


def settings_file(given: Path) -> Path:
    """The file itself, or the preset with that name. A path that is neither is returned for the reader to refuse."""
    if given.exists() or given.suffix or len(given.parts) > 1:
        return given
    preset = _folder() / f"{given.name}.yaml"
    if preset.exists():
        return preset
    raise NotFound(f"--config {given} is neither a file nor a preset; presets are {', '.join(preset_names())}")


def _folder() -> Path:
    package = Path(str(files("parlmesh")))
    installed = package / "presets"
    return installed if installed.is_dir() else package.parent / "presets"
