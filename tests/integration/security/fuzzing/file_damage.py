"""Damage to sound files: cut, flipped, or well-formed but wrong."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.integration.security.fuzzing.messages import Fuzzer

_SIDE_FILES = ("-wal", "-shm", "-journal")


def damaged(fuzzer: Fuzzer, sound: bytes) -> bytes:
    """Flips, cuts or moves pieces of the file, or changes the meaning of its JSON at the same length."""
    if fuzzer.random.random() < 0.7:
        return fuzzer.broken(sound)
    try:
        content = json.loads(sound)
    except ValueError:
        return fuzzer.broken(fuzzer.broken(sound))
    return json.dumps(changed(fuzzer, content)).encode()


def changed(fuzzer: Fuzzer, content: Any) -> Any:
    """The same tree with one leaf or branch replaced."""
    if isinstance(content, dict) and content and fuzzer.random.random() < 0.8:
        name = fuzzer.random.choice(sorted(content))
        return {**content, name: changed(fuzzer, content[name])}
    if isinstance(content, list) and content and fuzzer.random.random() < 0.8:
        place = fuzzer.random.randrange(len(content))
        return [*content[:place], changed(fuzzer, content[place]), *content[place + 1 :]]
    return fuzzer.json(3)


class Format(NamedTuple):
    """A sound file, how to read it, and how to damage it."""

    file: Path
    read: Callable[[Path], object]
    damage: Callable[[Fuzzer, bytes], bytes] = damaged


def damaged_rows(scratch: Path) -> Callable[[Fuzzer, bytes], bytes]:
    """A database with damaged pages, or a sound one with one value of one row replaced."""

    def damage(fuzzer: Fuzzer, sound: bytes) -> bytes:
        if fuzzer.random.random() < 0.3:
            return fuzzer.broken(sound)
        forget(scratch)
        scratch.write_bytes(sound)
        with closing(sqlite3.connect(scratch, isolation_level=None)) as database:
            database.execute("PRAGMA journal_mode = MEMORY")
            database.execute("PRAGMA synchronous = OFF")
            _change_a_value(fuzzer, database)
        return scratch.read_bytes()

    return damage


def _change_a_value(fuzzer: Fuzzer, database: sqlite3.Connection) -> None:
    tables = {name: rows for name in _tables(database) if (rows := _rows(database, name))}
    table = fuzzer.random.choice(sorted(tables))
    row = fuzzer.random.choice(tables[table])
    column = fuzzer.random.choice(sorted(row))
    before = row[column]
    value: Any = fuzzer.random.choice((None, -1, 0, 1 << 62, 1e308, float("inf"), fuzzer.text(), fuzzer.octets()))
    if isinstance(before, str) and before[:1] in ("{", "[") and fuzzer.random.random() < 0.7:
        value = json.dumps(changed(fuzzer, json.loads(before)))
    same = " AND ".join(f'"{name}" IS ?' for name in row)
    with suppress(sqlite3.IntegrityError):
        # A value that the schema forbids leaves the row unchanged.
        database.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ? WHERE {same}', (value, *row.values()))


def _tables(database: sqlite3.Connection) -> list[str]:
    found = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return sorted(str(row[0]) for row in found)


def _rows(database: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    found = database.execute(f'SELECT * FROM "{table}" LIMIT 100')
    names = [str(each[0]) for each in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


def forget(file: Path) -> None:
    """Files that an earlier reader of a database left beside it."""
    for end in _SIDE_FILES:
        file.with_name(file.name + end).unlink(missing_ok=True)
