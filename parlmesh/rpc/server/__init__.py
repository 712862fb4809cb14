"""The server side of gRPC: everything between the socket and a servicer. Needs the `server` extra."""

from .gate import message_check
from .method_shapes import opens_by_itself
from .server import FleetServer, Service
from .time_and_byte_quotas import metered

__all__ = ["FleetServer", "Service", "message_check", "metered", "opens_by_itself"]
