"""The stores of the journal: one protocol, one implementation per file."""

from .memory import MemoryStore
from .protocol import Deposed, Opened, SharedStore, Store
from .sqlite import SqliteStore

__all__ = ["Deposed", "MemoryStore", "Opened", "SharedStore", "SqliteStore", "Store"]
