"""A client's connection to the scheduler: it sends tasks, receives outcomes, and loses neither in a break."""

from .connection import Connection

__all__ = ["Connection"]
