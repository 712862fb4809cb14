"""How long an evaluation may take when the user has set no limit."""

_LEAST_EVALUATION_SECONDS = 120.0
# A greedy episode may be longer than any seen so far, and run on a slower machine.
_LONGER, _LEAST_EPISODE_STEPS, _SLOWER = 4, 1_000, 3


def evaluation_seconds(*, episodes: int, longest_episode: int, step_seconds: float) -> float:
    """A deadline that only an evaluation that never ends should miss.

    `step_seconds` is what one step of one environment takes, 0 before it is known.
    """
    steps = max(_LEAST_EPISODE_STEPS, _LONGER * longest_episode)
    return max(_LEAST_EVALUATION_SECONDS, _SLOWER * episodes * steps * step_seconds)
