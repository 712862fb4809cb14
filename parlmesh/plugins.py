"""Loads environments, handlers, algorithms and networks from user code. Imports only what the operator named."""

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from parlmesh.errors import ConfigError
from parlmesh.exception_text import sentence_at
from parlmesh.function_tasks import until_first_fleet
from parlmesh.policies import PolicySpec
from parlmesh.policies.custom_networks import NetworkFactory, install_network
from parlmesh.training.trainer import Trainer
from parlmesh.types import EnvironmentSpec

GROUP = "parlmesh.plugins"
"""Entry-point group in which installed packages offer plug-ins."""

Algorithm: TypeAlias = Callable[[PolicySpec, EnvironmentSpec, Mapping[str, Any], np.random.Generator], Trainer]
"""Makes a trainer from the policy's and the environment's specification, `training.custom` and a seeded generator."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """The parts that a plug-in adds, by name."""

    environments: Mapping[str, Any] = field(default_factory=dict)
    """A gymnasium environment class, or the arguments of `gymnasium.register`, by id."""
    handlers: Mapping[str, Any] = field(default_factory=dict)
    """A handler or its class, by kind."""
    algorithms: Mapping[str, Algorithm] = field(default_factory=dict)
    """Algorithms by their name in `training.algorithm`."""
    networks: Mapping[str, NetworkFactory] = field(default_factory=dict)
    """Networks by their name in `training.network`."""


def load_plugins(sources: Sequence[str]) -> Plugin:
    """Everything the sources add, merged; each source is imported and registered once per process."""
    return _loaded(tuple(sources))


@lru_cache(maxsize=64)
def _loaded(sources: tuple[str, ...]) -> Plugin:
    parts: dict[str, dict[str, Any]] = {kind.name: {} for kind in fields(Plugin)}
    owners: dict[tuple[str, str], str] = {}
    for source in sources:
        plugin = _found(source)
        for kind, names in parts.items():
            brought = getattr(plugin, kind)
            if not isinstance(brought, Mapping):
                raise ConfigError(f"plugin {source!r}: {kind} must be a mapping, got {type(brought).__name__}")
            for name, part in brought.items():
                if (kind, name) in owners:
                    other = owners[kind, name]
                    raise ConfigError(f"plugins {other!r} and {source!r} both define {kind} {name!r}")
                owners[kind, name] = source
                names[name] = part
                _check(source, kind, name, part)
    for name, part in parts["environments"].items():
        _register_environment(owners["environments", name], name, part)
    for name, part in parts["networks"].items():
        install_network(name, part)
    return Plugin(**parts)


def _found(source: str) -> Plugin:
    module, separator, name = source.rpartition(":")
    if not separator:
        return _checked(source, _entry_point(source))
    if not module or not name:
        raise ConfigError(f"plugin {source!r} must be module:attribute, file.py:attribute or an installed name")
    loaded = _file(source, Path(module)) if module.endswith(".py") else _module(source, module)
    try:
        return _checked(source, getattr(loaded, name))
    except AttributeError:
        raise ConfigError(f"plugin {source!r}: {module} has no attribute {name!r}") from None


def environment_name(source: str) -> str:
    """The id of an environment class that is named as a plug-in itself: its module and its name."""
    module, _, name = source.rpartition(":")
    return f"{Path(module).stem if module.endswith('.py') else module.rpartition('.')[2]}/{name}"


def _checked(source: str, found: Any) -> Plugin:
    if isinstance(found, Plugin):
        return found
    if isinstance(found, type) and callable(getattr(found, "step", None)) and callable(getattr(found, "reset", None)):
        return Plugin(environments={environment_name(source): found})
    said = f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__
    raise ConfigError(f"plugin {source!r} must be a parlmesh.plugins.Plugin or an environment class, got {said}")


def _entry_point(source: str) -> Any:
    offered = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    if source not in offered:
        known = ", ".join(sorted(offered)) or "none"
        raise ConfigError(
            f"plugin {source!r} is not installed (entry points of {GROUP}: {known}) and not a module:attribute"
        )
    return _imported(source, offered[source].load)


def _module(source: str, name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        # Appended last, so that a file here never shadows an installed package.
        sys.path.append(here)
    try:
        found: ModuleType = _imported(source, lambda: importlib.import_module(name))
    except ModuleNotFoundError as error:
        raise ConfigError(f"plugin {source!r}: there is no module {error.name!r} in {here} or installed") from error
    return found


def _file(source: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"plugin {source!r}: there is no file {path}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        found: ModuleType = _imported(source, lambda: _by_name(path))
    except ModuleNotFoundError as error:
        raise ConfigError(f"plugin {source!r} needs the module {error.name!r}, which is not installed") from error
    if found.__file__ is None or Path(found.__file__).resolve() != path.resolve():
        raise ConfigError(f"plugin {source!r} is hidden by the module of that name at {found.__file__}; rename it")
    return found


def _by_name(path: Path) -> ModuleType:
    """Imported by name, so that a slot's process finds it too; of a program, what is above its first fleet."""
    loaded, spec = sys.modules.get(path.stem), importlib.util.find_spec(path.stem)
    if loaded is not None or spec is None or spec.loader is None:
        return loaded or importlib.import_module(path.stem)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        with until_first_fleet(path):
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(path.stem, None)
        raise
    return module


def _imported(source: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (ModuleNotFoundError, ConfigError):
        raise
    except Exception as error:
        raise ConfigError(f"plugin {source!r} cannot be imported: {sentence_at(error)}") from error


def _check(source: str, kind: str, name: Any, part: Any) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"plugin {source!r}: names of {kind} must be text, got {name!r}")
    if kind in ("algorithms", "networks") and not callable(part):
        raise ConfigError(f"plugin {source!r}: {kind} {name!r} must be callable, got {type(part).__name__}")


def _register_environment(source: str, name: str, part: Any) -> None:
    import gymnasium

    arguments = dict(part) if isinstance(part, Mapping) else {"entry_point": part}
    known = gymnasium.registry.get(name)
    if known is not None:
        if known.entry_point is arguments.get("entry_point"):
            return
        raise ConfigError(f"plugin {source!r}: environment {name!r} exists already; choose another id")
    try:
        gymnasium.register(id=name, **arguments)
    except (TypeError, gymnasium.error.Error) as error:
        raise ConfigError(f"plugin {source!r}: environment {name!r} cannot be registered: {error}") from error
