"""What comes in from the actors: checked, counted once, queued, given out in batches. Knows nothing of gRPC."""

from .admission import Admission, Bounds, TrajectorySchema
from .queue import ExperienceQueue

__all__ = ["Admission", "Bounds", "ExperienceQueue", "TrajectorySchema"]
