"""Whether and when a task is tried again, and when it fails. Pure; randomness is passed in."""

import random

from ..config import RetryConfig
from .task import Failure, Task


def retry_delay(failures: int, config: RetryConfig, rng: random.Random) -> float:
    """Seconds to wait. Doubles with every failure up to a limit; half is random, to spread a burst of failures."""
    longest = config.longest_delay_seconds
    # The exponent is capped because a float overflows long before a task with many attempts fails.
    whole = min(longest, config.first_delay_seconds * 2.0 ** min(failures - 1, 64))
    return whole * (0.5 + 0.5 * rng.random())


def was_last(task: Task, failure: Failure, config: RetryConfig) -> bool:
    """Whether the attempt that failed was the task's last."""
    return not failure.retryable or task.failures >= (task.max_attempts or config.max_attempts)


def quarantined(task: Task, actor_id: str, config: RetryConfig) -> Failure | None:
    """The failure of a task that has lost too many actors; None while it may be given to another."""
    if task.losses < config.quarantine_losses:
        return None
    return Failure("ACTOR_LOST", f'lost {task.losses} actors while they ran it, "{actor_id}" the last')
