"""Where the journal is kept: one protocol, one implementation per file."""

from .memory import MemoryStore
from .protocol import Opened, Store
from .sqlite import SqliteStore

__all__ = ["MemoryStore", "Opened", "SqliteStore", "Store"]
