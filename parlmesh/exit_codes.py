"""The codes that processes of the fleet end with, and which one an error stands for. Imports no gRPC."""

import signal
from collections.abc import Mapping

from parlmesh.errors import ConfigError, FleetError, InvalidInput, PermissionDenied, Unauthenticated

PARENT_ENDED = signal.SIGHUP
"""Asks a child of a program that ended without stopping it to end, as SIGTERM does; unlike that, it may come twice."""

EXIT_OK = 0
EXIT_OTHER = 1
EXIT_CONFIGURATION = 2
EXIT_CANNOT_LISTEN = 3
EXIT_SECURITY = 4
EXIT_TRY_AGAIN = 75
"""EX_TEMPFAIL of sysexits: another try may succeed."""

_EXIT_BY_REASON = {"CANNOT_LISTEN": EXIT_CANNOT_LISTEN, "SECURITY": EXIT_SECURITY}
_EXIT_BY_ERROR: Mapping[type[FleetError], int] = {
    ConfigError: EXIT_CONFIGURATION,
    InvalidInput: EXIT_CONFIGURATION,
    Unauthenticated: EXIT_SECURITY,
    PermissionDenied: EXIT_SECURITY,
    FleetError: EXIT_OTHER,
}


def exit_code(error: FleetError) -> int:
    """The exit code of a process that ends with this error."""
    if error.reason in _EXIT_BY_REASON:
        return _EXIT_BY_REASON[error.reason]
    return next(_EXIT_BY_ERROR[kind] for kind in type(error).__mro__ if kind in _EXIT_BY_ERROR)
