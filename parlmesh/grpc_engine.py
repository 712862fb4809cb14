"""Chooses one of gRPC's two I/O engines for this process, and turns off gRPC's logging and fork handlers.

gRPC's event engine hands every read from its own thread to a pool, and from there to the completion queue. The older
path reads in the thread that waits for the queue, which cuts a round trip to two thirds (decision 0010). gRPC reads the
variable once, on import, for the whole process: so the binaries choose, and a program that uses the SDK chooses for
itself (decision 0024).

gRPC writes its own lines to stderr, among them one per refused handshake and one per call with too many headers.
Nothing counts or limits these lines, so anyone who reaches the port could fill a disk with them; they are off.

gRPC also runs handlers at every fork that can block forever. The binaries fork only to start programs, through uvloop:
an actor that started a slot's process hung in these handlers, and its event loop with it.
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
    """Sets the variables that are unset; returns False when gRPC is already imported, which is too late.

    Call it before anything imports grpc, `parlmesh.client` included. Pass another environment to prepare it for a child
    process.
    """
    environment.setdefault(VARIABLE, OLDER_PATH)
    environment.setdefault(LINES_VARIABLE, NO_LINES)
    environment.setdefault(FORK_VARIABLE, NO_HANDLERS)
    return environment is not os.environ or "grpc" not in sys.modules
