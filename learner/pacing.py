"""How much experience to ask for, so that no trajectory can grow older than the lag limit in the ordinary course."""


def rollouts_wanted(*, batch: int, max_policy_lag: int, outstanding: int, queued: int, training: int) -> int:
    """Trajectories to ask for now.

    At most (max_policy_lag + 1) batches are under way: asked for, queued, or in training. A trajectory that
    starts now thus meets at most `max_policy_lag` updates before its own (AReaL, arXiv:2505.24298, eq. 3).
    """
    return max(0, batch * (max_policy_lag + 1) - outstanding - queued - training)
