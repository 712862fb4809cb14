"""A rank that a learner started on its own machine: python -m learner.ranks STORE SIZE RANK."""

import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    """Returns the exit code: 0 when rank 0 ended the group."""
    from .collectives import Group
    from .follower_rank import obey
    from .rank_processes import LOOPBACK, PATIENCE_SECONDS, file_store

    meeting, size, rank = argv
    store = file_store(Path(meeting), int(size))
    return obey(Group(store, int(rank), int(size), seconds=PATIENCE_SECONDS, host=LOOPBACK))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
