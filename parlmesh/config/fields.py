"""Describes a configuration model: its keys, types, ranges and help. Reads models, never values."""

import enum
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from .field_help import help_of

REQUIRED: Final = object()

_TYPE_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    SecretStr: "text",
    SecretBytes: "text",
}


@dataclass(frozen=True)
class Leaf:
    """A key that takes a value rather than a section."""

    key: str
    field: FieldInfo
    default: Any
    """REQUIRED when there is none."""
    model: type[BaseModel]
    """The section that contains the key."""

    @property
    def meaning(self) -> str:
        """Its help text in one line."""
        return help_of(self.model, self.key.rpartition(".")[2])


def leaves(model: type[BaseModel], prefix: str = "", defaults: BaseModel | None = None) -> Iterator[Leaf]:
    """Every key of the model and its sections, in source order.

    `defaults` is the section as its owner sets it: `listen: ListenConfig = ListenConfig(port=50051)`.
    """
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        default = default_of(field) if defaults is None else getattr(defaults, name)
        section = section_of(field.annotation)
        if section is None:
            yield Leaf(key, field, default, model)
        else:
            yield from leaves(section, f"{key}.", default if isinstance(default, section) else None)


def default_of(field: FieldInfo) -> Any:
    """The value of an omitted key."""
    default = field.get_default(call_default_factory=True, validated_data={})
    return REQUIRED if default is PydanticUndefined else default


def set_defaults(model: type[BaseModel]) -> dict[str, Any]:
    """Defaults that the model sets in its sections; without them, one given key would reset the rest of its section."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        default = default_of(field)
        if isinstance(default, BaseModel):
            found[name] = _set_values(default)
    return found


def _set_values(section: BaseModel) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            found[name] = _set_values(value)
        elif name in section.model_fields_set:
            found[name] = value
    return found


def members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of `A | B`, or the annotation alone; unwraps Annotated[...]."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(member for part in typing.get_args(annotation) for member in members(part))
    return (annotation,)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation `Section` or `Section | None`."""
    for member in members(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            return member
    return None


def allows_none(annotation: Any) -> bool:
    """Whether the annotation accepts null."""
    return type(None) in members(annotation)


def is_secret(annotation: Any) -> bool:
    """Whether values of the annotation must never be shown."""
    return any(member in (SecretStr, SecretBytes) for member in members(annotation))


def is_text(annotation: Any) -> bool:
    """Whether a value is taken literally: `007` and `on` stay text."""
    return any(
        member in (str, Path, SecretStr, SecretBytes)
        or (isinstance(member, type) and issubclass(member, enum.Enum))
        or (typing.get_origin(member) is typing.Literal and all(isinstance(c, str) for c in typing.get_args(member)))
        for member in members(annotation)
    )


def choices(annotation: Any) -> tuple[str, ...]:
    """The allowed values of a Literal or an enum; empty for everything else."""
    found: list[str] = []
    for member in members(annotation):
        if typing.get_origin(member) is typing.Literal:
            found.extend(str(choice) for choice in typing.get_args(member))
        elif isinstance(member, type) and issubclass(member, enum.Enum):
            found.extend(str(choice.value) for choice in member)
    return tuple(found)


def bounds(field: FieldInfo) -> str:
    """The range, such as `>= 0 and <= 1`; empty when every number is allowed."""
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    found: dict[str, str] = {}
    for constraint in _constraints(field):
        for name, sign in signs.items():
            limit = getattr(constraint, name, None)
            if limit is not None:
                found[name] = f"{sign} {limit:g}" if isinstance(limit, float) else f"{sign} {limit}"
    return " and ".join(found[name] for name in signs if name in found)


def describe(field: FieldInfo) -> str:
    """The accepted values, in a few words: `a whole number >= 0`, `one of json, pretty`."""
    words = choices(field.annotation)
    if words:
        text = f"one of {', '.join(words)}"
    else:
        kinds = [_kind_of(member) for member in members(field.annotation) if member is not type(None)]
        text = " or ".join(dict.fromkeys(kinds))
        limits = bounds(field)
        text = f"{text} {limits}" if limits else text
    return f"{text}, or null" if allows_none(field.annotation) else text


def _kind_of(annotation: Any) -> str:
    origin = typing.get_origin(annotation) or annotation
    if origin in _TYPE_WORDS:
        return _TYPE_WORDS[origin]
    if isinstance(origin, type) and issubclass(origin, Mapping | dict):
        return "a mapping"
    if isinstance(origin, type) and issubclass(origin, Sequence | set | frozenset):
        return "a list"
    if isinstance(origin, type) and issubclass(origin, BaseModel):
        return "a section"
    return str(getattr(origin, "__name__", origin))


def _constraints(field: FieldInfo) -> Iterator[Any]:
    yield from field.metadata
    # `Port | None` keeps the constraints of Port inside the union.
    for part in typing.get_args(field.annotation):
        if typing.get_origin(part) is typing.Annotated:
            for extra in typing.get_args(part)[1:]:
                yield from extra.metadata if isinstance(extra, FieldInfo) else (extra,)
