"""Describes invalid settings in sentences: the key, the allowed range, the given value. Secrets stay hidden."""

import difflib
import json
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from parlmesh.errors import ConfigError

from .fields import bounds, describe, is_secret, leaves, members, section_of

_MOST_SENTENCES = 5
_MOST_NEAR = 3
_LONGEST_VALUE = 80
_RANGE_ERRORS = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal"})
_PREFIXES = frozenset(f"PARLMESH_{name}" for name in ("ACTOR", "FEDERATION", "LEARNER", "SCHEDULER", "UP"))


def describe_errors(model: type[BaseModel], error: ValidationError, file: Path | None = None) -> ConfigError:
    """All errors in one line, in the order of the keys."""
    found = error.errors(include_url=False)
    sentences = list(dict.fromkeys(_sentence(model, one) for one in found))
    text = "; ".join(sentences[:_MOST_SENTENCES])
    if len(sentences) > _MOST_SENTENCES:
        text = f"{text}; and {len(sentences) - _MOST_SENTENCES} more"
    metadata = {"key": _key(found[0]["loc"])} | ({"file": str(file)} if file else {})
    return ConfigError(text, **metadata)


def unknown_key(section: type[BaseModel], path: Sequence[int | str], *, origin: str = "") -> ConfigError:
    """`section` is the model that lacks the last part of the path."""
    key = _key(path)
    text = f'unknown key "{key}" ({_nearest(section, str(path[-1]), _key(path[:-1]))})'
    return ConfigError(f"{origin}: {text}" if origin else text, key=key)


def stray_variables(environment: Mapping[str, str], prefix: str) -> list[str]:
    """Sentences about variables that look like settings but that no process of the fleet reads."""
    known = {*_PREFIXES, prefix}
    found = []
    for name in sorted(environment):
        owner, separator, rest = name.partition("__")
        if owner.startswith("PARLMESH_") and separator and owner not in known:
            words = {each.removeprefix("PARLMESH_"): each for each in known}
            near = difflib.get_close_matches(owner.removeprefix("PARLMESH_"), words, n=1, cutoff=0.6)
            hint = f"did you mean {words[near[0]]}__{rest}?" if near else f"known are {', '.join(sorted(known))}"
            found.append(f"environment variable {name} is not read by any process; {hint}")
    return found


def _nearest(section: type[BaseModel], name: str, owner: str) -> str:
    before = f"{owner}." if owner else ""
    known = list(section.model_fields)
    # The key may be right but in the wrong section.
    near = [leaf.key for leaf in leaves(section) if leaf.key.rpartition(".")[2] == name][:_MOST_NEAR]
    if not near:
        near = [each for each in known if each.lower() == name.lower()]
    if not near:
        near = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(f'"{before}{name}"' for name in near) + "?"
    return "known keys: " + ", ".join(f"{before}{name}" for name in sorted(known))


def _sentence(model: type[BaseModel], error: ErrorDetails) -> str:
    section, field = _find(model, error["loc"])
    key = _key(error["loc"])
    kind = error["type"]
    if kind == "extra_forbidden":
        return unknown_key(section, error["loc"]).message
    if kind == "missing":
        return f"{key} is required: {describe(field)}" if field else f"{key} is required"
    if kind in ("value_error", "assertion_error"):
        # Checks written in a model name the value themselves; their input may be a whole section, secrets included.
        message = str(error.get("ctx", {}).get("error", error["msg"]))
        return f"{key}: {message}" if key else message
    shown = "***" if field is not None and is_secret(field.annotation) else _shown(error["input"])
    if kind in ("model_type", "model_attributes_type", "dict_type") and field is None:
        return f"{key or 'the configuration'} must be a section of keys, got {shown}"
    if kind == "finite_number":
        return f"{key} must be a finite number, got {shown}"
    if kind == "string_too_short":
        return f"{key} must have at least {error['ctx']['min_length']} characters, got {shown}"
    if kind == "string_too_long":
        return f"{key} must have at most {error['ctx']['max_length']} characters, got {shown}"
    if kind == "string_pattern_mismatch":
        return f"{key} must match {error['ctx']['pattern']}, got {shown}"
    if kind in ("too_short", "too_long"):
        limits = error["ctx"]
        size = f"at least {limits['min_length']}" if kind == "too_short" else f"at most {limits['max_length']}"
        return f"{key} must have {size} items, got {limits['actual_length']}"
    if field is not None and _points_at_field(error["loc"], section):
        allowed = bounds(field) if kind in _RANGE_ERRORS else describe(field)
        return f"{key} must be {allowed}, got {shown}"
    return f"{key}: {error['msg'][:1].lower()}{error['msg'][1:]}, got {shown}"


def _points_at_field(location: tuple[int | str, ...], section: type[BaseModel]) -> bool:
    """False when the error is inside a list or mapping, whose elements have no field."""
    return bool(location) and location[-1] in section.model_fields


def _find(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[type[BaseModel], FieldInfo | None]:
    """The innermost section on the way to the error, and the field there if there is one."""
    section, field = model, None
    for part in location:
        if isinstance(part, str) and part in section.model_fields:
            field = section.model_fields[part]
            inner = section_of(field.annotation) or _element_section(field.annotation)
            if inner is not None:
                section, field = inner, None
    return section, field


def _element_section(annotation: Any) -> type[BaseModel] | None:
    for member in members(annotation):
        for part in typing.get_args(member):
            found = section_of(part)
            if found is not None:
                return found
    return None


def _key(location: Sequence[int | str]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
