"""Answers of the fleet on stdout: a table for people, JSON lines for programs."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from parlmesh.harmless_text import visible, visible_lines

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.message import Message
    from google.protobuf.timestamp_pb2 import Timestamp
    from rich.table import Table


NATURAL: Mapping[int, int] = MappingProxyType({})
"""Widths of columns that are as wide as what they hold."""
_NARROWEST = 9
"""A text becomes no narrower: states and most names are still whole."""


def print_json(messages: Iterable["Message"], *, type_name: str = "") -> None:
    """One JSON object a line, with the names of the protos; a type where objects of several kinds follow each other."""
    for message in messages:
        head = {"type": type_name} if type_name else {}
        sys.stdout.write(json.dumps(head | fields_of(message)) + "\n")


def print_object(**fields: Any) -> None:
    """One JSON object of a command that has no message of the protos to show; paths as text."""
    sys.stdout.write(json.dumps(fields, default=str) + "\n")


def fields_of(message: "Message") -> dict[str, Any]:
    """A message as JSON has it, fields without a value included."""
    from google.protobuf.json_format import MessageToDict

    fields = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    # JSON has bytes in base64; a digest is compared with what sha256sum prints.
    for field in message.DESCRIPTOR.fields:
        if field.name.endswith("digest") and field.type == field.TYPE_BYTES:
            fields[field.name] = getattr(message, field.name).hex()
    return _with_numbers(message.DESCRIPTOR, fields)


def _with_numbers(descriptor: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """The protos' JSON has whole numbers of 64 bits as strings; programs that read a line want to count with them."""
    for field in descriptor.fields:
        if field.name not in fields:
            continue
        value, inner = fields[field.name], field.message_type
        if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            fields[field.name] = [int(each) for each in value] if isinstance(value, list) else int(value)
        elif inner is not None and inner.GetOptions().map_entry:
            number = inner.fields_by_name["value"]
            if number.cpp_type in (number.CPPTYPE_INT64, number.CPPTYPE_UINT64):
                fields[field.name] = {name: int(each) for name, each in value.items()}
        elif inner is not None and not inner.full_name.startswith("google.protobuf."):
            for each in value if isinstance(value, list) else [value]:
                _with_numbers(inner, each)
    return fields


def say(text: str, *, to_stderr: bool = False) -> None:
    """A sentence or a few lines; what others chose in them is harmless."""
    stream = sys.stderr if to_stderr else sys.stdout
    stream.write(visible_lines(text) + "\n")
    stream.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, nothing: str) -> None:
    """A calm table, or a sentence when there are no rows.

    A column that begins with ">" holds figures and is set to the right. One that ends with "?" is left out where the
    terminal is too narrow, the last one first. If that is not enough, texts become narrower: they go on in the next
    line after a word, and a longer word ends in "…". Figures and the first text, which names the row, stay whole.
    """
    from rich.measure import Measurement

    from parlmesh.cli.screen.live_table import PIPE_WIDTH, console

    cells = [[visible(cell) for cell in row] for row in rows]
    if not cells:
        sys.stdout.write(nothing + "\n")
        return
    screen = console()
    shown = list(range(len(columns)))
    optional = [index for index in shown if columns[index].endswith("?")]
    unbounded = screen.options.update(max_width=PIPE_WIDTH)

    def excess(table: "Table") -> int:
        return Measurement.get(screen, unbounded, table).maximum - screen.width

    table = _table(columns, cells, shown)
    while excess(table) > 0 and optional:
        shown.remove(optional.pop())
        table = _table(columns, cells, shown)
    if excess(table) > 0:
        close = _table(columns, cells, shown, gap=1)
        widths, left = _narrowed(columns, cells, shown, excess(close))
        table = _table(columns, cells, shown, widths, gap=1)
        screen.width += max(left, 0)
    screen.print(table)


def _narrowed(
    columns: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int], excess: int
) -> tuple[dict[int, int], int]:
    """Widths of the texts behind the first one, taken from the widest, and how much too wide they still are."""
    from rich.cells import cell_len

    texts = [index for index in shown if not columns[index].startswith(">")][1:]
    heads = {index: cell_len(columns[index].removesuffix("?")) for index in texts}
    widths = {index: max(heads[index], *(cell_len(row[index]) for row in rows)) for index in texts}
    while excess > 0:
        able = [index for index in texts if widths[index] > max(_NARROWEST, heads[index])]
        if not able:
            break
        widths[max(able, key=widths.__getitem__)] -= 1
        excess -= 1
    return widths, excess


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    shown: Sequence[int],
    widths: Mapping[int, int] = NATURAL,
    gap: int = 2,
) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, padding=(0, gap - 1, 0, 1))
    for index in shown:
        right = columns[index].startswith(">")
        name = columns[index].removeprefix(">").removesuffix("?")
        width = widths.get(index)
        justify: Literal["left", "right"] = "right" if right else "left"
        table.add_column(name, justify=justify, overflow="ellipsis", no_wrap=width is None, width=width)
    for row in rows:
        # As text: what a stranger chose as a name is no markup.
        table.add_row(*(Text(row[index]) for index in shown))
    return table


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
