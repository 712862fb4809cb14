"""PostgreSQL as a scheduler's store uses it: connections that block, the schema, and what a database promises.

Imports nothing by itself: settings are checked where asyncpg is not installed.
"""
