"""Loads objects that an operator installed and names as "module:attribute"."""

import importlib
from typing import Any

from parlmesh.errors import ConfigError
from parlmesh.exception_text import sentence_at


def load_source(what: str, source: str) -> Any:
    """The attribute of the module; raises ConfigError if the source has another form or cannot be imported."""
    module, separator, attribute = source.partition(":")
    if not separator or not module or not attribute:
        raise ConfigError(f"{what} must be module:attribute, got {source!r}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{what} = {source!r} cannot be imported: {error}") from error
    except Exception as error:
        raise ConfigError(f"{what} = {source!r} cannot be imported: {sentence_at(error)}") from error
