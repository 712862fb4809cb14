"""The single mapping between the fleet's errors and gRPC statuses."""

from collections.abc import Mapping
from contextlib import suppress

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from parlmesh.errors import (
    AlreadyExists,
    ConfigError,
    DeadlineExceeded,
    FailedPrecondition,
    FleetError,
    InvalidInput,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)

DOMAIN = "parlmesh"
DETAILS_KEY = "grpc-status-details-bin"
REASON_KEY = "parlmesh-reason"
"""The reason as plain text too, for tools that show trailers and cannot read the details."""

STATUS_BY_ERROR: Mapping[type[FleetError], grpc.StatusCode] = {
    FleetError: grpc.StatusCode.INTERNAL,
    InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
}

# INVALID_ARGUMENT stands for two errors; over the wire it is always about the request.
_ERROR_BY_STATUS = {code: error for error, code in STATUS_BY_ERROR.items() if error is not ConfigError}
_CODES = {code.value[0]: code for code in grpc.StatusCode}

# The status that a grpc.aio client reports when a write fails because the RPC has ended: it overwrites the server's own
# status, even one that has arrived (grpc issue 36066). All that is known then is that the call may be retried.
_LOST_STATUS = "Internal error from Core"

# Trailers share 8 KiB; percent and base64 encoding can make text four times as long.
_LONGEST_MESSAGE_BYTES = 1024
_LONGEST_METADATA_BYTES = 1024


def status_code(error: FleetError) -> grpc.StatusCode:
    """The code of the nearest class that is in the table."""
    return next(STATUS_BY_ERROR[kind] for kind in type(error).__mro__ if kind in STATUS_BY_ERROR)


def status_from_error(error: FleetError) -> status_pb2.Status:
    """google.rpc.Status with ErrorInfo, and RetryInfo when another try may succeed."""
    status = status_pb2.Status(
        code=status_code(error).value[0], message=_shortened(error.message, _LONGEST_MESSAGE_BYTES)
    )
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    left = _LONGEST_METADATA_BYTES
    for key, value in error.metadata.items():
        left -= len(key)
        if left <= 0:
            break
        info.metadata[key] = _shortened(value, left)
        left -= len(info.metadata[key].encode())
    status.details.add().Pack(info)
    retry_after = _retry_after(error)
    if retry_after > 0:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(retry_after * 1e9))
        status.details.add().Pack(retry)
    return status


def error_from_status(status: status_pb2.Status) -> FleetError:
    """The inverse of `status_from_error`; unknown codes become FleetError with the code as reason."""
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        # A foreign server's broken details are no reason to lose its status.
        with suppress(DecodeError):
            if detail.Is(info.DESCRIPTOR):
                detail.Unpack(info)
            elif detail.Is(retry.DESCRIPTOR):
                detail.Unpack(retry)
    kind = _ERROR_BY_STATUS.get(code, FleetError)
    error = kind(status.message or code.name, reason=info.reason or ("" if kind is not FleetError else code.name))
    error.metadata.update(info.metadata)
    if isinstance(error, ResourceExhausted):
        error.retry_after_seconds = retry.retry_delay.ToNanoseconds() / 1e9
    return error


def error_from_rpc(error: grpc.aio.AioRpcError) -> FleetError:
    """The error that a failed call stands for, by its status code and ErrorInfo."""
    if error.code() is grpc.StatusCode.INTERNAL and error.details() == _LOST_STATUS:
        return Unavailable("the stream ended while a message was being sent", reason="STREAM_ENDED")
    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            with suppress(DecodeError):
                status = status_pb2.Status.FromString(value)
    # The transport's own status counts, whatever the details say.
    status.code = error.code().value[0]
    status.message = error.details() or status.message
    return error_from_status(status)


def says_its_reason(error: grpc.aio.AioRpcError) -> bool:
    """Whether the server itself answered with a reason; a broken connection has none."""
    return any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ())


def fleet_error_in(error: BaseException) -> FleetError | None:
    """The error itself, or the first of a group that holds only such errors (as task groups raise them)."""
    if isinstance(error, FleetError):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = [fleet_error_in(inner) for inner in error.exceptions]
        if None not in found:
            return found[0]
    return None


def _retry_after(error: FleetError) -> float:
    return float(getattr(error, "retry_after_seconds", 0.0))


def _shortened(text: str, limit: int) -> str:
    encoded = text.encode(errors="replace")
    return text if len(encoded) <= limit else encoded[: max(0, limit - 3)].decode(errors="ignore") + "..."
