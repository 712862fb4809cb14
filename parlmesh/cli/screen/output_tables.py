"""Prints the fleet's answers to stdout: readable tables, JSON lines for programs."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from parlmesh.harmless_text import visible, visible_lines

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.table import Table


NATURAL: Mapping[int, int] = MappingProxyType({})
"""No fixed widths: columns are as wide as their content."""
_NARROWEST = 9
"""Minimum width of a text column: states and most names still fit."""


def print_json(messages: Iterable["Message"], *, type_name: str = "") -> None:
    """One JSON object per line, with the protos' field names; with a type if a command prints several kinds."""
    for message in messages:
        head = {"type": type_name} if type_name else {}
        sys.stdout.write(json.dumps(head | fields_of(message)) + "\n")


def print_object(**fields: Any) -> None:
    """One JSON object, for commands without a proto message to show; paths become text."""
    sys.stdout.write(json.dumps(fields, default=str) + "\n")


def fields_of(message: "Message") -> dict[str, Any]:
    """A message as a JSON object, including fields without a value."""
    from google.protobuf.json_format import MessageToDict

    fields = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    # The protos' JSON has bytes in base64; people compare a digest with the output of sha256sum.
    for field in message.DESCRIPTOR.fields:
        if field.name.endswith("digest") and field.type == field.TYPE_BYTES:
            fields[field.name] = getattr(message, field.name).hex()
    return _with_numbers(message.DESCRIPTOR, fields)


def _with_numbers(descriptor: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Converts 64-bit integers, which the protos' JSON writes as strings, to numbers."""
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
    """Prints a few lines, with untrusted characters escaped."""
    stream = sys.stderr if to_stderr else sys.stdout
    stream.write(visible_lines(text) + "\n")
    stream.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, nothing: str) -> None:
    """Prints a table, or the sentence `nothing` when there are no rows.

    A column that starts with ">" holds numbers and is right-aligned. A column that ends with "?" is dropped if the
    terminal is too narrow, the last one first. If that is not enough, texts become narrower: they wrap after a word,
    and a longer word ends in "…". Numbers and the first text, which names the row, stay whole.
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
    """Narrowed widths of all texts but the first, taken from the widest, and the excess that remains."""
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
        # As Text: a name chosen by a stranger is not markup.
        table.add_row(*(Text(row[index]) for index in shown))
    return table


def enum_word(name: str, prefix: str) -> str:
    """TASK_STATE_QUEUED as "queued"."""
    return name.removeprefix(prefix).lower()
