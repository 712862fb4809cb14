"""Experience from actors: checked, counted once, queued and handed out in batches. Knows nothing about gRPC."""

from .queue import ExperienceQueue
from .trajectory_schema import Bounds, TrajectorySchema

__all__ = ["Bounds", "ExperienceQueue", "TrajectorySchema"]
