"""Answers of the fleet on stdout: a table for people, JSON lines for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.message import Message
    from google.protobuf.timestamp_pb2 import Timestamp


def print_json(messages: Iterable["Message"]) -> None:
    """One JSON object a line, with the names of the protos."""
    from google.protobuf.json_format import MessageToDict

    for message in messages:
        fields = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        sys.stdout.write(json.dumps(fields) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, nothing: str) -> None:
    """A calm table; figures (columns that begin with ">") to the right; a sentence when there are no rows."""
    from rich import box
    from rich.table import Table

    from parlmesh.cli.live import console

    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    if table.row_count == 0:
        sys.stdout.write(nothing + "\n")
        return
    console().print(table)


def enum_word(name: str, prefix: str) -> str:
    """TASK_STATE_QUEUED as "queued"."""
    return name.removeprefix(prefix).lower()


def seconds_of(duration: "Duration") -> str:
    """A duration with a unit that fits it."""
    seconds = duration.seconds + duration.nanos / 1e9
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def age_of(moment: "Timestamp", now_seconds: float) -> str:
    """How long ago, in words; a dash when it never was."""
    if not moment.seconds:
        return "–"
    age = max(0.0, now_seconds - (moment.seconds + moment.nanos / 1e9))
    if age < 60:
        return f"{age:.1f} s ago"
    return f"{age / 60:.0f} min ago" if age < 3_600 else f"{age / 3_600:.1f} h ago"
