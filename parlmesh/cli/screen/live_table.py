"""Draws a `FleetView` as a table in the terminal."""

import os
from collections.abc import Iterable

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from parlmesh.cli.screen.fleet_view import (
    CURVE_POINTS,
    FleetView,
    clock,
    counted,
    failures_text,
    goal_text,
    number,
    sparkline,
    waiting_text,
)
from parlmesh.harmless_text import visible_lines

WIDTH = 84
PIPE_WIDTH = 2_000
FIGURES = 29
REFRESHES_PER_SECOND = 4

STATE_STYLES = {
    "running": "bold cyan",
    "finished": "bold green",
    "failed": "bold red",
    "stopped": "bold yellow",
    "paused": "yellow",
}


def render(view: FleetView, elapsed_seconds: float) -> RenderableType:
    """The whole panel: progress, learning, policy, queues, actors and the last notes."""
    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(style="dim", width=10, no_wrap=True)
    rows.add_column(ratio=1, no_wrap=True)
    for label, value in _rows(view):
        rows.add_row(label, value)
    notes = [Text(note, style="yellow", overflow="ellipsis", no_wrap=True) for note in view.notes]
    body: list[RenderableType] = [rows]
    if notes:
        body += [Text(""), *notes]
    state = Text(f" {view.state} ", style=STATE_STYLES.get(view.state, "dim"))
    title = Text.assemble((" parlmesh ", "bold"), ("· ", "dim"), (f"{view.run_id} ", ""))
    return Panel(
        Group(*body),
        title=title,
        title_align="left",
        subtitle=Text.assemble(state, ("· ", "dim"), (f"{clock(elapsed_seconds)} ", "")),
        subtitle_align="right",
        box=box.ROUNDED,
        border_style="dim",
        padding=(1, 2),
        width=WIDTH,
    )


def _rows(view: FleetView) -> list[tuple[str, RenderableType]]:
    rows: list[tuple[str, RenderableType]] = []
    if view.training is None:
        rows.append(("steps", Text("waiting for the learner", style="dim")))
    else:
        rows += _training_rows(view)
    if not view.serial:
        rows += _fleet_rows(view)
    elif view.supervised:
        rows.append(("serial", Text(f"one process, no actors · {_restarts(view)}")))
    return rows


def _training_rows(view: FleetView) -> list[tuple[str, RenderableType]]:
    assert view.training is not None
    progress = view.training.progress
    steps = Table.grid(padding=(0, 2))
    steps.add_column(width=FIGURES, no_wrap=True)
    steps.add_column(width=CURVE_POINTS)
    steps.add_column(justify="right", no_wrap=True)
    total = max(progress.step_budget, 1)
    bar = ProgressBar(
        total=total,
        completed=min(progress.steps, total),
        width=CURVE_POINTS,
        complete_style="cyan",
        finished_style="green",
    )
    steps.add_row(
        Text(f"{progress.steps:,} / {progress.step_budget:,}"),
        bar,
        Text(f"{progress.steps_per_second:,.0f}/s", style="bold"),
    )
    learning = Table.grid(padding=(0, 2))
    learning.add_column(width=FIGURES, no_wrap=True)
    learning.add_column()
    episode_return = progress.episode_return if progress.HasField("episode_return") else None
    learning.add_row(
        Text.assemble((number(episode_return), "bold"), ("  last 100 episodes", "dim")),
        Text(sparkline(list(view.returns)), style="cyan"),
    )
    goal_met = (
        progress.HasField("evaluation_return")
        and progress.HasField("goal_return")
        and progress.evaluation_return >= progress.goal_return
    )
    lag = (
        f"version {progress.policy_version}  ·  lag {progress.policy_lag:.1f} mean, {progress.max_policy_lag_seen} max"
    )
    failures = failures_text(view.training)
    return [
        ("steps", steps),
        ("return", learning),
        ("evaluation", Text(goal_text(view.training), style="bold green" if goal_met else "")),
        ("policy", Text(lag)),
        *([("obstacle", Text(view.training.obstacle, style="yellow"))] if view.training.obstacle else []),
        *([("failed", Text(failures, style="bold red", overflow="ellipsis", no_wrap=True))] if failures else []),
    ]


def _fleet_rows(view: FleetView) -> list[tuple[str, RenderableType]]:
    queued = view.training.progress.queued_trajectories if view.training is not None else None
    tasks = view.statistics.queued_tasks + view.statistics.waiting_tasks if view.statistics is not None else None
    running = view.statistics.running_tasks if view.statistics is not None else None
    queues = (
        f"{counted(queued, 'trajectory', 'trajectories')}  ·  {counted(tasks, 'task')}, {number(running, 0)} running"
    )
    ready, total = view.ready_actors, view.total_actors
    actors = Text.assemble((f"{ready} / {total}", "" if ready >= total else "yellow"), " ready")
    if view.supervised:
        actors.append(f"  ·  {_restarts(view)}")
    rows: list[tuple[str, RenderableType]] = [("queues", Text(queues))]
    if view.training is not None:
        rows.append(("waiting", Text(waiting_text(view.training))))
    return [
        *rows,
        ("actors", actors),
    ]


def _restarts(view: FleetView) -> str:
    return counted(view.restarts(), "restart")


class _Screen(Console):
    """A console that escapes control characters, so that untrusted text cannot move the cursor or change colours."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            harmless = segment.control or segment.text.isprintable() or segment.text == "\n"
            yield segment if harmless else Segment(visible_lines(segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    """The console for tables; in a pipe it is plain and wide enough that a row stays one line."""
    screen = _Screen(highlight=False, markup=False, emoji=False, stderr=stderr)
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = PIPE_WIDTH
    return screen
