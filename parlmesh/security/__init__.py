"""Authentication and authorisation of callers. Importing this needs neither gRPC nor the `security` extra."""

from .config import SecurityConfig
from .identity import ANYONE, Identity, Role

__all__ = ["ANYONE", "Identity", "Role", "SecurityConfig"]
