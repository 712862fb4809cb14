"""The output of a benchmark: a readable table, then one line of JSON for programs, and nothing after it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .samples import Samples


@dataclass(frozen=True, slots=True)
class Row:
    """One figure; without samples the note says why there are none."""

    key: str
    label: str
    samples: Samples | None
    note: str = ""


def table(rows: Sequence[Row]) -> str:
    """Columns: figure, median, min..max, runs, note."""
    cells = [("figure", "median", "min..max", "n", "note"), *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    return "\n".join(
        f"{label:<{widths[0]}}  {median:>{widths[1]}}  {spread:>{widths[2]}}  {runs:>{widths[3]}}  {note}".rstrip()
        for label, median, spread, runs, note in cells
    )


def json_line(rows: Sequence[Row], derived: Mapping[str, float | None], context: Mapping[str, Any]) -> str:
    """Every key exists; a figure that was not measured is null."""
    measured = [(row.key, row.samples) for row in rows if row.samples is not None]
    content: dict[str, Any] = {row.key: None if row.samples is None else rounded(row.samples.median) for row in rows}
    content |= {key: None if value is None else rounded(value) for key, value in derived.items()}
    content["spread"] = {key: [rounded(value) for value in samples.spread] for key, samples in measured}
    content["runs"] = {key: len(samples.values) for key, samples in measured}
    return json.dumps({**content, **context}, ensure_ascii=False)


def rounded(value: float) -> float | int:
    """Four significant digits below 1000, whole numbers above."""
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")


def shown(value: float) -> str:
    return f"{rounded(value):,}"


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    if row.samples is None:
        return row.label, "-", "-", "0", row.note
    low, high = row.samples.spread
    return row.label, shown(row.samples.median), f"{shown(low)}..{shown(high)}", str(len(row.samples.values)), row.note
