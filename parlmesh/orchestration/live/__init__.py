"""Live orchestration: sub-agents are tasks on a fleet."""

from .fleet_job import play_job
from .orchestrator import JobResult, Orchestrator
from .sub_agent_answers import Observation

__all__ = ["JobResult", "Observation", "Orchestrator", "play_job"]
