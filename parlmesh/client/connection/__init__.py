"""A client's line to the scheduler: tasks go out, outcomes come back, and a break loses neither."""

from .connection import Connection

__all__ = ["Connection"]
