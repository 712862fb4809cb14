"""Plays with a policy: fragments of experience from a collector, and whole episodes to measure it."""

from .collector import Collector, Mark, collector_seed
from .evaluation import evaluate, evaluation_seed, games_by_opponent, play_match

__all__ = [
    "Collector",
    "Mark",
    "collector_seed",
    "evaluate",
    "evaluation_seed",
    "games_by_opponent",
    "play_match",
]
