"""Shows a `FleetView` in the background: a live table in a terminal, a line every few seconds elsewhere."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from rich.console import Console, Group, RenderableType
from rich.live import Live

from parlmesh.cli.screen.fleet_view import FleetView
from parlmesh.cli.screen.live_table import REFRESHES_PER_SECOND, render
from parlmesh.cli.screen.progress_line import plain_line
from parlmesh.cli.screen.top_tabs import Tabs, heading, render_tab

PLAIN_SECONDS = 2.0


@asynccontextmanager
async def shown(view: FleetView, console: Console, *, plain: bool, tabs: Tabs | None = None) -> AsyncIterator[None]:
    """Draws the view, or the chosen tab, until the block ends; the last picture stays on the screen."""
    started = time.monotonic()

    def elapsed() -> float:
        return time.monotonic() - started

    draw = _draw_lines if plain or not console.is_terminal else partial(_draw_table, tabs)
    async with asyncio.TaskGroup() as tasks:
        drawing = tasks.create_task(draw(view, console, elapsed), name="draw")
        try:
            yield
        finally:
            drawing.cancel()


async def _draw_table(tabs: Tabs | None, view: FleetView, console: Console, elapsed: Callable[[], float]) -> None:
    def picture() -> RenderableType:
        if tabs is None:
            return render(view, elapsed())
        if tabs.current == "run":
            return Group(heading(tabs), render(view, elapsed()))
        return render_tab(tabs, console.height)

    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        try:
            while True:
                live.update(picture(), refresh=True)
                await asyncio.sleep(1 / REFRESHES_PER_SECOND)
        finally:
            live.update(picture(), refresh=True)


async def _draw_lines(view: FleetView, console: Console, elapsed: Callable[[], float]) -> None:
    told = 0
    last = ""

    def tell() -> None:
        nonlocal told, last
        news = view.told - told
        for note in list(view.notes)[-news:] if news else ():
            console.print(note, soft_wrap=True)
        told = view.told
        line = plain_line(view, elapsed())
        # Compared without the clock at the front, which always changes.
        if line[5:] != last[5:]:
            console.print(line, soft_wrap=True)
        last = line

    try:
        while True:
            tell()
            await asyncio.sleep(PLAIN_SECONDS)
    finally:
        tell()
