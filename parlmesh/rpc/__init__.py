"""gRPC servers and channels as the whole fleet uses them: errors, health, keepalive, identity, drain."""

from .backoff import Backoff
from .caller import caller
from .channel import open_channel
from .errors import error_from_rpc, error_from_status, status_from_error
from .running import run_service
from .server import FleetServer, Service
from .together import together

__all__ = [
    "Backoff",
    "FleetServer",
    "Service",
    "caller",
    "error_from_rpc",
    "error_from_status",
    "open_channel",
    "run_service",
    "status_from_error",
    "together",
]
