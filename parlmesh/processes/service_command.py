"""How a service is started: its configuration file and its command line. Starts nothing."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Section by section, what is above wins."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return result


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """One YAML file, written whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True), encoding="utf-8")
    temporary.replace(path)


def service_command(service: str, settings: Path, *overrides: str) -> list[str]:
    """The command line that anyone can type to start the same process by hand."""
    installed = importlib.util.find_spec(f"parlmesh.{service}") is not None
    command = [sys.executable, "-m", f"parlmesh.{service}" if installed else service, "--config", str(settings)]
    for override in overrides:
        command += ["--set", override]
    return command
