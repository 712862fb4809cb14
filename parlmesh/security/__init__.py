"""Who calls, and what they may call. Importing this needs neither gRPC nor the `security` extra."""

from .config import SecurityConfig
from .identity import ANYONE, Identity, Role

__all__ = ["ANYONE", "Identity", "Role", "SecurityConfig"]
