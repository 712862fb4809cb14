"""Experience that is trained on more than once: rings of columns, what is drawn from them, and how often."""

from .config import ReplayConfig
from .frames import Frames
from .rate_limiter import RateLimiter
from .replay import PrioritisedReplay, Replay, Sample, UniformReplay

__all__ = ["Frames", "PrioritisedReplay", "RateLimiter", "Replay", "ReplayConfig", "Sample", "UniformReplay"]
