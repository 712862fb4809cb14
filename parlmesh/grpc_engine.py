"""Which of gRPC's two I/O engines serves this process, and what gRPC does of its own accord.

gRPC hands every read from the thread of its event engine to a pool, and from there to the completion queue; the older
path reads in the thread that waits for the queue, which takes a message there and back in two thirds of the time
(decision 0010). gRPC reads the variable once, when it is imported, and it holds for the whole process: so the binaries
choose, and a program that uses the SDK chooses for itself (decision 0024).

gRPC writes lines of its own to stderr, among them one for every refused handshake and one for every call with too many
headers: whoever reaches the port could fill a disk with them. Nothing counts or limits them, so they are off.

gRPC also prepares every fork to go on as a second process, in handlers that can wait for ever. The binaries fork only
to start programs, through uvloop: an actor that started a slot's process hung in them, and with it its event loop.
"""

import os
import sys
from collections.abc import MutableMapping

VARIABLE = "GRPC_EXPERIMENTS"
OLDER_PATH = "-event_engine_client,-event_engine_listener"
LINES_VARIABLE = "GRPC_VERBOSITY"
NO_LINES = "NONE"
FORK_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
NO_HANDLERS = "0"


def choose_engine(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Takes the quicker, quiet path, unless the variables are set; False when gRPC is imported and it is too late.

    Call it before anything imports grpc, `parlmesh.client` included. Another environment than this process's own is
    one for a child.
    """
    environment.setdefault(VARIABLE, OLDER_PATH)
    environment.setdefault(LINES_VARIABLE, NO_LINES)
    environment.setdefault(FORK_VARIABLE, NO_HANDLERS)
    return environment is not os.environ or "grpc" not in sys.modules
