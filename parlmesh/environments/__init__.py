"""Environments by id: many at once, as a collector steps them, with any spaces and one or two players."""

from .vector import Environments, Seen, environment_spec, single_environment, spaces_of
from .wrappers import WRAPPERS

__all__ = ["WRAPPERS", "Environments", "Seen", "environment_spec", "single_environment", "spaces_of"]
