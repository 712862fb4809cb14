"""What can go wrong, in the fleet's own words. Knows no gRPC: `parlmesh.rpc.error_statuses` maps these to statuses."""

from typing import ClassVar


class FleetError(Exception):
    """An error with a sentence for people and a stable word for programs.

    `metadata` names the values of the sentence; it travels in google.rpc.ErrorInfo.
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
    """No such thing, or it was forgotten."""

    default_reason = "NOT_FOUND"


class AlreadyExists(FleetError):
    """The name is taken by something else."""

    default_reason = "ALREADY_EXISTS"


class FailedPrecondition(FleetError):
    """Right in itself, but not in the present state."""

    default_reason = "FAILED_PRECONDITION"


class ResourceExhausted(FleetError):
    """A limit is reached; `retry_after_seconds` says when another try may succeed, 0 that none will."""

    default_reason = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, *, reason: str = "", retry_after_seconds: float = 0.0, **metadata: object) -> None:
        super().__init__(message, reason=reason, **metadata)
        self.retry_after_seconds = retry_after_seconds


class Unauthenticated(FleetError):
    """The caller did not prove who it is."""

    default_reason = "UNAUTHENTICATED"


class PermissionDenied(FleetError):
    """The caller is known and may not do this."""

    default_reason = "PERMISSION_DENIED"


class Unavailable(FleetError):
    """The other side cannot be reached or is stopping; a retry may succeed."""

    default_reason = "UNAVAILABLE"


class DeadlineExceeded(FleetError):
    """It took longer than allowed."""

    default_reason = "DEADLINE_EXCEEDED"


class ConfigError(FleetError):
    """A configuration that cannot be used; found before anything is started."""

    default_reason = "CONFIG"
