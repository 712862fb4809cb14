"""Which of gRPC's two I/O engines serves this process.

gRPC hands every read from the thread of its event engine to a pool, and from there to the completion queue; the older
path reads in the thread that waits for the queue, which takes a message there and back in two thirds of the time
(decision 0010). gRPC reads the variable once, when it is imported.
"""

import os

VARIABLE = "GRPC_EXPERIMENTS"
OLDER_PATH = "-event_engine_client,-event_engine_listener"


def choose_engine() -> None:
    """Takes the quicker path. What the variable says already stands."""
    os.environ.setdefault(VARIABLE, OLDER_PATH)
