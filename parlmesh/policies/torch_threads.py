"""How many threads torch uses in this process: a trainer's choice stands, and a process that only acts uses one."""

import torch

_chosen = False


def choose_threads(count: int) -> None:
    """For the process, from now on; the last trainer's choice stands."""
    global _chosen
    _chosen = True
    torch.set_num_threads(count)


def use_one_thread() -> None:
    """Unless a trainer has chosen: small batches gain nothing from more."""
    if not _chosen:
        torch.set_num_threads(1)
