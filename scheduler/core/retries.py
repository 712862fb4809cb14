"""When an attempt is tried again, how long after, and when a task is given up. Pure; randomness is passed in."""

import random

from ..config import RetryConfig
from .task import Failure, Task


def retry_delay(failures: int, config: RetryConfig, rng: random.Random) -> float:
    """Seconds. Doubles with every failure up to a limit; half of it is random, so that a burst of failures spreads."""
    longest = config.longest_delay_seconds
    # The exponent is capped because a float overflows long before a patient task gives up.
    whole = min(longest, config.first_delay_seconds * 2.0 ** min(failures - 1, 64))
    return whole * (0.5 + 0.5 * rng.random())


def was_last(task: Task, failure: Failure, config: RetryConfig) -> bool:
    """Whether a task whose attempt failed is not tried again."""
    return not failure.retryable or task.failures >= (task.max_attempts or config.max_attempts)


def quarantined(task: Task, actor_id: str, config: RetryConfig) -> Failure | None:
    """Why a task that lost one more actor is not given to another; None when it is."""
    if task.losses < config.quarantine_losses:
        return None
    return Failure("ACTOR_LOST", f'lost {task.losses} actors while they ran it, "{actor_id}" the last')
