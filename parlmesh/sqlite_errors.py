"""The errors that Python's sqlite3 raises when a database cannot be used."""

import sqlite3

# SQLite quotes the names in a damaged schema; where they are not UTF-8, Python fails to decode its message.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
