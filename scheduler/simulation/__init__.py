"""Seeded fault schedules against the pure core: no sockets, no threads, no real time. A seed replays exactly."""

from .invariants import Violation
from .world import Options, World, run_schedule

__all__ = ["Options", "Violation", "World", "run_schedule"]
