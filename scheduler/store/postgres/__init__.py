"""A journal in PostgreSQL that several schedulers share: one leads and writes, the others follow."""

from .store import PostgresStore

__all__ = ["PostgresStore"]
