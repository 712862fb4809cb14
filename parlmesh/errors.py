"""The exceptions of parlmesh. They know nothing of gRPC: `parlmesh.rpc.error_statuses` maps them to statuses."""

from typing import ClassVar


class FleetError(Exception):
    """An error with a readable sentence and a stable reason for programs.

    `metadata` holds the values the sentence mentions, by name; it travels in google.rpc.ErrorInfo.
    """

    default_reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, *, reason: str = "", **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.metadata = {key: str(value) for key, value in metadata.items()}


class InvalidInput(FleetError):
    """The request can never succeed in this form."""

    default_reason = "INVALID_INPUT"


class NotFound(FleetError):
    """It does not exist, or is no longer kept."""

    default_reason = "NOT_FOUND"


class AlreadyExists(FleetError):
    """The name is already taken."""

    default_reason = "ALREADY_EXISTS"


class FailedPrecondition(FleetError):
    """The request is valid but not allowed in the current state."""

    default_reason = "FAILED_PRECONDITION"


class ResourceExhausted(FleetError):
    """A limit is reached. `retry_after_seconds` says when a retry may succeed; 0 = a retry will not help."""

    default_reason = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, *, reason: str = "", retry_after_seconds: float = 0.0, **metadata: object) -> None:
        super().__init__(message, reason=reason, **metadata)
        self.retry_after_seconds = retry_after_seconds


class Unauthenticated(FleetError):
    """The caller did not prove who it is."""

    default_reason = "UNAUTHENTICATED"


class PermissionDenied(FleetError):
    """The caller is known but may not do this."""

    default_reason = "PERMISSION_DENIED"


class Unavailable(FleetError):
    """The other side cannot be reached or is stopping; a retry may succeed."""

    default_reason = "UNAVAILABLE"


class DeadlineExceeded(FleetError):
    """The operation took longer than allowed."""

    default_reason = "DEADLINE_EXCEEDED"


class ConfigError(FleetError):
    """The configuration cannot be used; raised before anything starts."""

    default_reason = "CONFIG"


def without_frames(error: FleetError) -> FleetError:
    """The error for a caller in another thread: its sentence and notes, without the library's frames.

    A suppressed context goes too: IPython looks into it for exception groups and then shows no cell.
    """
    if error.__suppress_context__:
        error.__context__ = None
    return error.with_traceback(None)
