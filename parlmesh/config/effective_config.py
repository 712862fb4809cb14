"""The effective configuration, for logs and files. Secrets are masked."""

import enum
import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import yaml
from pydantic import BaseModel, SecretBytes, SecretStr

MASK = "***"


def effective(config: BaseModel) -> dict[str, Any]:
    """Every key with its value, in types that JSON has."""
    return {name: _plain(getattr(config, name)) for name in type(config).model_fields}


def to_yaml(config: BaseModel) -> str:
    """The effective configuration as YAML that can be loaded again, except for its secrets."""
    content = effective(config)
    # Unprintable characters such as U+0085 do not survive YAML unless they are escaped.
    printable = json.dumps(content, ensure_ascii=False).isprintable()
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=printable))


def _plain(value: Any) -> Any:
    if isinstance(value, SecretStr | SecretBytes):
        return MASK
    if isinstance(value, BaseModel):
        return effective(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value) if isinstance(value, PurePath) else repr(value)
