"""The number of threads torch uses in this process: as a trainer chose, or one in a process that only acts."""

import torch

_chosen = False


def choose_threads(count: int) -> None:
    """Sets the number for the whole process; the last trainer's choice wins."""
    global _chosen
    _chosen = True
    torch.set_num_threads(count)


def use_one_thread() -> None:
    """Uses one thread unless a trainer has chosen: small batches gain nothing from more."""
    if not _chosen:
        torch.set_num_threads(1)
