"""The plug-in `mapek`: lets a loop monitor and heal an actor's node."""

from parlmesh.plugins import Plugin

from .execute_handler import Execute
from .handlers import Analyse, Monitor, Plan

plugin = Plugin(handlers={each.kind: each for each in (Analyse, Execute, Monitor, Plan)})
