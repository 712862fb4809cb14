"""Configuration: defaults, a YAML file, the environment and `--set`, checked once into frozen models."""

from .arguments import parse_arguments
from .loading import load
from .model import Config, ListenConfig, LogConfig, MetricsConfig
from .printing import effective, to_yaml
from .sources import load_source

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
