"""Why a stream with two tasks on it ended."""

import grpc.aio

from parlmesh.errors import FleetError
from parlmesh.rpc import error_from_rpc

STREAM_ERRORS = (grpc.aio.AioRpcError, FleetError, ExceptionGroup)


def fleet_error_of(error: Exception) -> FleetError:
    """The first error of a stream's tasks. A group that holds anything else is a bug and is raised again."""
    if isinstance(error, FleetError):
        return error
    if isinstance(error, grpc.aio.AioRpcError):
        return error_from_rpc(error)
    if isinstance(error, ExceptionGroup):
        known, unknown = error.split((grpc.aio.AioRpcError, FleetError))
        if known is not None and unknown is None:
            return fleet_error_of(known.exceptions[0])
    raise error
