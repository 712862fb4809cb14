"""What comes in from the actors: checked, counted once, queued, given out in batches. Knows nothing of gRPC."""

from .queue import ExperienceQueue
from .trajectory_admission import Admission, Bounds, TrajectorySchema

__all__ = ["Admission", "Bounds", "ExperienceQueue", "TrajectorySchema"]
