"""The plug-in `mapek`: an actor with it can be watched and healed by a loop."""

from parlmesh.plugins import Plugin

from .execute_handler import Execute
from .handlers import Analyse, Monitor, Plan

plugin = Plugin(handlers={each.kind: each for each in (Analyse, Execute, Monitor, Plan)})
