"""Prints the consequences of failures in a mesh, and shows the progress of long computations."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from parlmesh.cli.screen.output_tables import print_table, say

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from parlmesh.mesh.fleet_or_local import Progress
    from parlmesh.mesh.optimizer import WhatIf

_SHOWN = 10


def progress_bar(what: str) -> "AbstractContextManager[Progress]":
    """A progress bar on stderr if that is a terminal; else nothing."""
    from collections.abc import Iterator
    from contextlib import contextmanager

    @contextmanager
    def shown() -> Iterator["Progress"]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    return shown()


def print_what_if(found: "WhatIf", as_json: bool) -> None:
    """Prints the worst scenarios as a table, or all of them as JSON."""
    from parlmesh.mesh.link_costs import UNIT

    told = found.consequences
    with_traffic = bool((told.bottleneck >= 0).any() or told.unrouted.any())
    # Worst first: by pairs cut off, then traffic without a path, then load, then longer paths.
    order = np.lexsort((-told.extra_cost, -told.utilisation, -told.unrouted, -told.cut_pairs))
    rows: list[dict[str, Any]] = [
        {
            "fail": found.names(int(index)),
            "cut_pairs": int(told.cut_pairs[index]),
            "longer_pairs": int(told.longer_pairs[index]),
            "extra_cost": round(int(told.extra_cost[index]) / UNIT, 6),
            "worst_stretch": round(float(told.worst_stretch[index]), 4),
            **(
                {
                    "bottleneck": found.bottleneck(int(index)),
                    "utilisation": round(float(told.utilisation[index]), 4),
                    "unrouted_mbps": round(float(told.unrouted[index]), 3),
                }
                if with_traffic
                else {}
            ),
        }
        for index in order[: None if as_json else _SHOWN]
    ]
    cutting = int((told.cut_pairs > 0).sum())
    summary = {
        "mesh": found.mesh.name,
        "scenarios": len(found.scenarios),
        "possible": found.possible,
        "cutting": cutting,
        **found.made,
    }
    if as_json:
        say(json.dumps({**summary, "consequences": rows}))
        return
    drawn = "" if found.possible == len(found.scenarios) else f" drawn from {found.possible}"
    say(f"{found.mesh.name}: {len(found.scenarios)} scenarios{drawn}; {cutting} of them cut nodes off")
    columns = ["fails", ">pairs cut", ">pairs longer", ">worst stretch"]
    columns += ["bottleneck", ">its load", ">Mbit/s without a path"] if with_traffic else []
    print_table(
        columns,
        [
            [" and ".join(row["fail"]), f"{row['cut_pairs']}", f"{row['longer_pairs']}", f"{row['worst_stretch']:.2f}"]
            + (
                [str(row["bottleneck"]), f"{row['utilisation']:.0%}", f"{row['unrouted_mbps']:g}"]
                if with_traffic
                else []
            )
            for row in rows
        ],
        nothing="nothing can fail",
    )
    say(f"computed {'on a fleet' if found.made['where'] == 'fleet' else 'here'} in {found.made['seconds']:.2f} s: "
        f"{found.made['why']}")  # fmt: skip
