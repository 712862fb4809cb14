"""gRPC for the whole fleet: channels, errors, identity. Server-only code is in `parlmesh.rpc.server`."""

from .caller_identity import caller
from .channel.backoff import Backoff
from .channel.channel import open_channel
from .error_statuses import error_from_rpc, error_from_status, status_from_error
from .message_limit import UNTOLD_MESSAGE_BYTES, message_limit_metadata, told_message_bytes
from .paging import pages
from .service_main import run_service
from .task_group import being_cancelled, set_within, together

__all__ = [
    "UNTOLD_MESSAGE_BYTES",
    "Backoff",
    "being_cancelled",
    "caller",
    "error_from_rpc",
    "error_from_status",
    "message_limit_metadata",
    "open_channel",
    "pages",
    "run_service",
    "set_within",
    "status_from_error",
    "together",
    "told_message_bytes",
]
