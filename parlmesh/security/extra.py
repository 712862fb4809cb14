"""The `security` extra is optional: certificates need it, tokens do not."""

from parlmesh.errors import ConfigError


def require_extra() -> None:
    """Raises ConfigError without the extra; call it before importing modules that use certificates."""
    try:
        import cryptography  # noqa: F401
        import jwt  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"certificates need {error.name}; install it with: pip install parlmesh[security]", reason="SECURITY"
        ) from error
