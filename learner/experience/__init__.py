"""What comes in from the actors: checked, counted once, queued, given out in batches. Knows nothing of gRPC."""

from .queue import ExperienceQueue
from .trajectory_schema import Bounds, TrajectorySchema

__all__ = ["Bounds", "ExperienceQueue", "TrajectorySchema"]
