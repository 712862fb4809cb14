"""Loads a file, the environment and overrides into a validated model. Later sources win, key by key."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from parlmesh.errors import ConfigError

from .fields import allows_none, is_secret, is_text, section_of, set_defaults
from .validation_errors import describe_errors, unknown_key

ConfigT = TypeVar("ConfigT", bound=BaseModel)

_LARGEST_FILE_BYTES = 1024 * 1024
_MOST_VALUES = 1_000_000
_NOTHING = ("", "null", "~")


def load(
    model: type[ConfigT],
    *,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    prefix: str,
) -> ConfigT:
    """Defaults < YAML file < environment (`PREFIX__SECTION__KEY=value`) < overrides (`section.key=value`)."""
    values = set_defaults(model)
    if file is not None:
        content = _read(file)
        _forget_empty_sections(model, content)
        _merge(values, content)
    for name, text in sorted((environment or {}).items()):
        if name.startswith(f"{prefix}__"):
            path = name[len(prefix) + 2 :].lower().split("__")
            _put(model, values, path, text, origin=f"environment variable {name}")
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f'--set takes key=value, got "{override}"', key=key)
        path = key.strip().split(".")
        if text.strip().lower() not in _NOTHING:
            _refuse_secret(model, path, prefix)
        _put(model, values, path, text, origin=f"--set {key.strip()}")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise describe_errors(model, error, file) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _LARGEST_FILE_BYTES:
            raise ConfigError(f"{file} is larger than {_LARGEST_FILE_BYTES} bytes", file=file)
        text = file.read_text(encoding="utf-8")
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_many_aliases(tree, file)
        _refuse_repeated_keys(tree, file)
        content = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}", file=file) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text", file=file) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid YAML: {_place(error)}", file=file) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold a mapping of keys, got {type(content).__name__}", file=file)
    return content


def _refuse_many_aliases(tree: yaml.Node | None, file: Path) -> None:
    """An alias is a few bytes but may stand for many values: walking through all of them could take forever."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            parts = node.value if isinstance(node, yaml.SequenceNode) else []
            if isinstance(node, yaml.MappingNode):
                parts = [part for pair in node.value for part in pair]
            sizes[id(node)] = 1 + sum(map(size, parts))
        return sizes[id(node)]

    if tree is not None and size(tree) > _MOST_VALUES:
        raise ConfigError(f"{file} has aliases that stand for more than {_MOST_VALUES} values", file=file)


def _refuse_repeated_keys(node: yaml.Node | None, file: Path) -> None:
    """In YAML the last of two equal keys silently wins; here that is an error."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                raise ConfigError(f'{file} line {line}: key "{key.value}" is given twice', key=key.value, file=file)
            seen.add(key.value)
            _refuse_repeated_keys(value, file)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated_keys(item, file)


def _place(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "cannot be parsed"
    return f"{problem} (line {mark.line + 1})" if mark is not None else problem


def _merge(target: dict[str, Any], source: Mapping[str, Any]) -> None:
    for key, value in source.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = value


def _forget_empty_sections(model: type[BaseModel], values: dict[str, Any]) -> None:
    """`training:` with nothing below it is a section without keys, not null."""
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is None or name not in values:
            continue
        if values[name] is None and not allows_none(field.annotation):
            del values[name]
        elif isinstance(values[name], dict):
            _forget_empty_sections(section, values[name])


def _refuse_secret(model: type[BaseModel], path: list[str], prefix: str) -> None:
    """Every user who lists the processes of the machine can see a command line."""
    fields, annotation = model.model_fields, None
    for name in path:
        if annotation is not None:
            section = section_of(annotation)
            fields = section.model_fields if section is not None else {}
        if name not in fields:
            return
        annotation = fields[name].annotation
    if is_secret(annotation):
        variable = "__".join([prefix, *path]).upper()
        beside = f"a file ({'.'.join(path)}_file) or " if f"{path[-1]}_file" in fields else ""
        raise ConfigError(
            f"--set {'.'.join(path)} would show a secret in the process list; "
            f"set it with {beside}the environment variable {variable}",
            key=".".join(path),
        )


def _put(model: type[BaseModel], values: dict[str, Any], path: list[str], text: str, *, origin: str) -> None:
    section: type[BaseModel] | None = model
    target = values
    for depth, name in enumerate(path):
        last = depth == len(path) - 1
        annotation: Any = None
        if section is not None:
            if name not in section.model_fields:
                raise unknown_key(section, path[: depth + 1], origin=origin)
            annotation = section.model_fields[name].annotation
            section = section_of(annotation)
        if last:
            target[name] = _scalar(text, annotation, origin)
        else:
            inner = target.get(name)
            target[name] = dict(inner) if isinstance(inner, dict) else {}
            target = target[name]


def _scalar(text: str, annotation: Any, origin: str) -> Any:
    if allows_none(annotation) and text.strip().lower() in _NOTHING:
        return None
    if is_text(annotation):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        shown = "***" if is_secret(annotation) else json.dumps(text)
        raise ConfigError(f"{origin}: {shown} is not valid YAML: {_place(error)}") from error
