"""How many actor processes a local fleet starts, and how many workers each of them has."""

WORKERS_PER_PROCESS = 1000
"""Most workers in one actor process."""
_WORKERS_WORTH_A_PROCESS = 10


def processes_for(workers: int, cores: int) -> int:
    """Actor processes for this many workers: one per core where that pays off, never one per worker."""
    wanted = min(cores, -(-workers // _WORKERS_WORTH_A_PROCESS))
    return max(wanted, -(-workers // WORKERS_PER_PROCESS))


def shares(workers: int, processes: int) -> list[int]:
    """Workers of each process, as evenly as possible."""
    least, more = divmod(workers, processes)
    return [least + (index < more) for index in range(processes)]
