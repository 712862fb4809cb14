"""How much experience to request, so that none becomes older than the lag limit."""


def rollouts_wanted(*, batch: int, max_policy_lag: int, outstanding: int, queued: int, training: int) -> int:
    """Trajectories to ask for now.

    At most (max_policy_lag + 1) batches are in progress: requested, queued, or in training. A trajectory that starts
    now thus meets at most `max_policy_lag` updates before its own (AReaL, arXiv:2505.24298, eq. 3).
    """
    return max(0, batch * (max_policy_lag + 1) - outstanding - queued - training)


def shares(*, slots: int, batch: int, max_policy_lag: int, num_envs: int) -> tuple[int, int]:
    """Environments per slot and trajectories per batch that keep `slots` slots busy, with batches as large as before.

    Both stay as given if every slot has work already. Otherwise environments are divided, as far as they can be, until
    all slots are busy even while a batch is in training.
    """
    if (max_policy_lag + 1) * batch >= slots:
        return num_envs, batch
    parts = [parts for parts in range(1, num_envs + 1) if num_envs % parts == 0]
    enough = [part for part in parts if max(1, max_policy_lag) * batch * part >= slots]
    most = enough[0] if enough else parts[-1]
    return num_envs // most, batch * most
