"""Orchestrating for real: sub-agents are tasks on the workers of a fleet."""

from .observation import Observation
from .orchestrator import JobResult, Orchestrator
from .playing import play_job

__all__ = ["JobResult", "Observation", "Orchestrator", "play_job"]
