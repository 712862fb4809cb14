"""Configuration: defaults, a YAML file, the environment and `--set`, validated once into frozen models."""

from .arguments import parse_arguments
from .effective_config import effective, to_yaml
from .installed_objects import load_source
from .loader import load
from .model import Config, ListenConfig, LogConfig, MetricsConfig

__all__ = [
    "Config",
    "ListenConfig",
    "LogConfig",
    "MetricsConfig",
    "effective",
    "load",
    "load_source",
    "parse_arguments",
    "to_yaml",
]
