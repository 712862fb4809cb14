"""The server's side of gRPC: everything between the socket and a servicer. Needs the `server` extra."""

from .fair_share import metered
from .handlers import opens_by_itself
from .server import FleetServer, Service

__all__ = ["FleetServer", "Service", "metered", "opens_by_itself"]
