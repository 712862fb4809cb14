"""Whether and when a task that failed is tried again. Pure functions."""

import random

from ..config import RetryConfig
from .task import Failure, Task


def may_retry(task: Task, failure: Failure, config: RetryConfig) -> bool:
    """`task.failures` already counts this failure."""
    return failure.retryable and task.failures < (task.max_attempts or config.max_attempts)


def delay_seconds(failures: int, config: RetryConfig, rng: random.Random) -> float:
    """Doubles with every failure up to a limit; half of it is random, so that a burst of failures spreads out."""
    longest = config.longest_delay_seconds
    # The exponent is capped because a float overflows long before a patient task gives up.
    whole = min(longest, config.first_delay_seconds * 2.0 ** min(failures - 1, 64))
    return whole * (0.5 + 0.5 * rng.random())


def is_poison(task: Task, config: RetryConfig) -> bool:
    return task.losses >= config.quarantine_losses
