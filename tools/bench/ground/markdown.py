"""The last line of a benchmark as a Markdown table: `python -m tools.bench.ground.markdown < output`."""

import sys
from typing import Any

from .measuring import Result, last_object
from .report import shown


def markdown(found: Result) -> str:
    """Figures with their spread, then those without one."""
    spread, runs = found.get("spread", {}), found.get("runs", {})
    lines = ["| figure | median | min..max | n |", "|---|---|---|---|"]
    for key, value in found.items():
        if key in spread:
            low, high = spread[key]
            lines.append(f"| `{key}` | {shown(value)} | {shown(low)}..{shown(high)} | {runs[key]} |")
        elif _is_number(value):
            lines.append(f"| `{key}` | {shown(value)} | | |")
        elif value is None:
            lines.append(f"| `{key}` | not measured | | |")
    return "\n".join(lines)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


if __name__ == "__main__":
    print(markdown(last_object(sys.stdin.read())))
