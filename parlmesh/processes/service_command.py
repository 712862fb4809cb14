"""The configuration file and the command line of a service. Starts nothing."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merges section by section; values of `above` win."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return result


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Writes a YAML file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True), encoding="utf-8")
    temporary.replace(path)


def service_command(service: str, settings: Path, *overrides: str) -> list[str]:
    """The command line of a service, which also works when typed by hand."""
    installed = importlib.util.find_spec(f"parlmesh.{service}") is not None
    command = [sys.executable, "-m", f"parlmesh.{service}" if installed else service, "--config", str(settings)]
    for override in overrides:
        command += ["--set", override]
    return command
