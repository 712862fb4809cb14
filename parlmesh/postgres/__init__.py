"""PostgreSQL for a scheduler's store: blocking connections, the schema, and durability checks.

Imports nothing itself, so that settings can be checked without asyncpg.
"""
