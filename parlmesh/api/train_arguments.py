"""What `parlmesh.train` is given, checked before anything is started, so that a mistake is named in its own words."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.plugins import Plugin, environment_name
from parlmesh.processes import merged
from parlmesh.security import SecurityConfig


def environment_section(given: Any, learner: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The section `training.environment`, and the plug-in that brings the class if a class was given."""
    section = dict(given) if isinstance(given, Mapping) else {"id": given}
    named = section.get("id", "")
    if isinstance(named, str):
        return section, ()
    if not isinstance(named, type) or not callable(getattr(named, "step", None)):
        raise InvalidInput(
            f"environment is a {type(named).__name__}; it must be an id such as 'CartPole-v1', a class of "
            "environments, or a mapping with one as its id: every process makes its own",
            reason="INVALID_ENVIRONMENT",
        )
    if learner:
        raise InvalidInput(
            f"environment is the class {named.__name__}, but the learner at {learner} makes its own; pass an id that "
            "it and its actors know",
            reason="INVALID_ENVIRONMENT",
        )
    source = _source_of(named)
    section["id"] = environment_name(source)
    _register(section["id"], named)
    return section, (source,)


def plugin_sources(given: Any) -> list[str]:
    """Plug-ins as every process finds them: files by their full path."""
    if isinstance(given, str):
        raise InvalidInput(f"plugins is the text {given!r}; it must be a list", reason="INVALID_PLUGINS")
    for each in given:
        if not isinstance(each, str):
            said = "a Plugin" if isinstance(each, Plugin) else f"{each!r:.60}"
            raise InvalidInput(
                f"plugins has {said}; it must be named for the other processes, as 'file.py:plugin' or 'module:plugin'",
                reason="INVALID_PLUGINS",
            )
    return [str(Path(each).resolve()) if ".py:" in each else each for each in given]


def plain(value: Any, key: str) -> Any:
    """Settings as a file can hold them: numpy's numbers and arrays as Python's."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, (np.generic, np.ndarray)):
        return plain(value.tolist(), key)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(part, f"{key}.{name}") for name, part in value.items()}
    if isinstance(value, Sequence):
        return [plain(part, f"{key}[{position}]") for position, part in enumerate(value)]
    kind = "a function" if callable(value) and not isinstance(value, type) else f"a {type(value).__name__}"
    raise InvalidInput(
        f"{key} is {kind}; settings are numbers, texts, and lists and mappings of them", reason="INVALID_SETTINGS"
    )


def section_of(given: Any) -> dict[str, Any]:
    """Settings as a section; keys may have dots, as on the command line and in studies."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidInput(
            f"settings is {given!r:.60}; it must be a mapping of keys of the section training",
            reason="INVALID_SETTINGS",
        )
    found: dict[str, Any] = {}
    for key, value in given.items():
        part = value
        for name in reversed(str(key).split(".")):
            part = {name: part}
        found = merged(found, part)
    return found


def check_callbacks(callbacks: Mapping[str, object]) -> None:
    """Refuses what cannot be called."""
    for name, given in callbacks.items():
        if not callable(given):
            raise InvalidInput(
                f"{name} is {given!r:.60}; it must be a function that takes the run", reason="INVALID_CALLBACK"
            )


def check_security(given: object) -> None:
    """Refuses a path or a token alone."""
    if not isinstance(given, SecurityConfig):
        raise InvalidInput(
            f"security is a {type(given).__name__}; it must be a parlmesh.security.SecurityConfig(ca=…)",
            reason="INVALID_SECURITY",
        )


def known_only_here(environment: str) -> str:
    """Advice for an id that this program registered and the fleet's processes cannot know; else empty."""
    gymnasium = sys.modules.get("gymnasium")
    known = gymnasium.registry.get(environment) if gymnasium is not None else None
    if known is None or ":" in environment:
        return ""
    return (
        f"{environment} is registered in this program; the fleet's processes know it too if you pass its class, or "
        f"'module:{environment}' with the module that registers it"
    )


def _source_of(environment: type) -> str:
    """The class as a plug-in: its module, or the file of the program that defines it."""
    module, name = environment.__module__, environment.__qualname__
    if not name.isidentifier():
        raise InvalidInput(
            f"environment {name} is defined inside a function or a class, where no other process finds it; define it "
            "in a module",
            reason="INVALID_ENVIRONMENT",
        )
    main = sys.modules["__main__"]
    if module != "__main__":
        return f"{module}:{name}"
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return f"{spec.name}:{name}"
    if file is None:
        raise InvalidInput(
            f"environment {name} is defined at a prompt or in a notebook, where no other process can import it; put "
            "it into a module",
            reason="INVALID_ENVIRONMENT",
        )
    return f"{Path(file).resolve()}:{name}"


def _register(name: str, environment: type) -> None:
    """Lets this program make it too, as its policies do; the newest class of the name counts."""
    import gymnasium

    gymnasium.registry.pop(name, None)
    gymnasium.register(id=name, entry_point=environment)  # type: ignore[arg-type]
