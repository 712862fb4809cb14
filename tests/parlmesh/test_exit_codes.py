import pytest

from parlmesh.errors import (
    ConfigError,
    FleetError,
    InvalidInput,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from parlmesh.exit_codes import exit_code


class _OfAService(NotFound):
    default_reason = "NO_SUCH_TASK"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (InvalidInput("x"), 2),
        (Unavailable("x", reason="CANNOT_LISTEN"), 3),
        (ConfigError("x", reason="SECURITY"), 4),
        (Unauthenticated("x"), 4),
        (PermissionDenied("x"), 4),
        (Unavailable("x"), 1),
        (_OfAService("x"), 1),
        (FleetError("x"), 1),
    ],
)
def test_exit_codes(error: FleetError, code: int) -> None:
    assert exit_code(error) == code
