"""The cost of the web page: its own CPU, the first paint, and tasks a second with and without open pages.

python tools/bench/dashboard.py [--quick] prints one JSON line. Pages are read by server-sent events, as browsers do, in
a separate process; the first paint is what Chromium reports if it is installed, else null. Turns with and without pages
alternate in one run, so that a busy machine slows both. The scheduler's processor time for a task is measured beside
the rate, because on two shared cores the rate also pays for the process that reads the pages.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import psutil

from parlmesh.client import PARLController, TaskRequest
from parlmesh.testing import Process

PAGES = ("", "tasks", "tasks?state=queued", "jobs", "tasks?state=failed")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


async def follow(port: int, page: str, taken: list[int]) -> None:
    """One open page: reads its events until cancelled; `taken` gets the bytes of each."""
    name, _, query = page.partition("?")
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    path = f"/events?page={name}{'&' if query else ''}{query}"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    try:
        while line := await reader.readline():
            if line.startswith(b"data:"):
                taken.append(len(line))
    finally:
        writer.close()


@contextlib.contextmanager
def reading(port: int, pages: Sequence[str]) -> Iterator[None]:
    """Keeps the pages open, read by a separate process, so that the client loses no time to them."""
    if not pages:
        yield
        return
    reader = subprocess.Popen([sys.executable, __file__, "--follow", str(port)], stdout=subprocess.PIPE)
    try:
        assert reader.stdout is not None
        reader.stdout.readline()
        yield
    finally:
        reader.kill()
        reader.communicate()


async def follow_all(port: int) -> None:
    """Reads all pages until killed; writes a line when the first event of each has come."""
    taken: list[list[int]] = [[] for _ in PAGES]
    following = [asyncio.create_task(follow(port, *each)) for each in zip(PAGES, taken, strict=True)]
    while not all(taken):  # noqa: ASYNC110 - nobody tells when a line was read
        await asyncio.sleep(0.05)
    print("open", flush=True)
    await asyncio.gather(*following)


@dataclass(frozen=True)
class Turn:
    """No-op tasks from submit to outcome."""

    tasks_per_second: float
    scheduler_microseconds: float
    """Processor time of the scheduler per task."""
    page_share: float
    """Share of one core that the page's server takes."""


async def take_turn(
    controller: PARLController, scheduler: psutil.Process, page: psutil.Process, seconds: float
) -> Turn:
    done, started, spent, served = 0, time.monotonic(), _cpu(scheduler), _cpu(page)
    while time.monotonic() - started < seconds:
        await controller.execute_parallel([TaskRequest("noop")] * 2_000)
        done += 2_000
    passed = time.monotonic() - started
    return Turn(done / passed, (_cpu(scheduler) - spent) / done * 1e6, (_cpu(page) - served) / passed)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _scheduler() -> psutil.Process:
    """The scheduler of the fleet that this process started."""
    children = psutil.Process().children(recursive=True)
    return next(child for child in children if any("scheduler" in word for word in child.cmdline()[1:3]))


async def first_paint(port: int) -> float | None:
    """Milliseconds until Chromium has painted the first page, the best of three."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return None
    from playwright.async_api import async_playwright

    script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    found: list[float] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for _ in range(3):
            context = await browser.new_context(viewport={"width": 1280, "height": 800})
            tab = await context.new_page()
            await tab.goto(f"http://127.0.0.1:{port}/", wait_until="load")
            # Not wait_for_function: the page allows no eval.
            while (painted := await tab.evaluate(script)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            found.append(painted)
            await context.close()
        await browser.close()
    return min(found)


async def measured(actors: int, queued: int, turns: int, turn_seconds: float, cpu_seconds: float) -> dict[str, object]:
    controller = PARLController()
    await controller.initialize(actors)
    arguments = ["--set", f"scheduler={controller.address}", "--set", "learner=", "--set", "port=0"]
    with Process("parlmesh.dashboard", *arguments) as page:
        port = page.wait_for("serving", 60)["port"]
        server = psutil.Process(page.pid)
        # If there is a wrapper, its child is what serves.
        server = max([server, *server.children(recursive=True)], key=lambda each: each.memory_info().rss)
        scheduler = _scheduler()
        without: list[Turn] = []
        with_pages: list[Turn] = []
        await take_turn(controller, scheduler, server, turn_seconds / 2)
        for turn in range(turns):
            # The order alternates, so that a machine that grows busier or quieter favours neither.
            for watched in (turn % 2 == 1, turn % 2 == 0):
                with reading(port, PAGES if watched else ()):
                    found = await take_turn(controller, scheduler, server, turn_seconds)
                (with_pages if watched else without).append(found)
        # Working actors would prefetch the short tasks of the whole queue.
        await controller.pause([each.actor_id for each in await controller.list_actors()])
        await controller.submit_tasks([TaskRequest("noop")] * queued)
        bytes_taken: list[int] = []
        open_pages = [asyncio.create_task(follow(port, name, bytes_taken)) for name in PAGES]
        await asyncio.sleep(2)
        before, started = server.cpu_times(), time.monotonic()
        await asyncio.sleep(cpu_seconds)
        after, passed = server.cpu_times(), time.monotonic() - started
        used = after.user + after.system - before.user - before.system
        waiting = (await controller.get_statistics()).queued_tasks
        for each in open_pages:
            each.cancel()
        await asyncio.wait(open_pages)
        paint = await first_paint(port)
    await controller.close()
    return {
        "actors": actors,
        "queued_tasks": waiting,
        "open_pages": len(PAGES),
        "server_cpu_share_of_one_core": round(used / passed, 4),
        "largest_event_bytes": max(bytes_taken, default=0),
        "first_paint_ms": None if paint is None else round(paint, 1),
        "tasks_per_second_without": round(median(turn.tasks_per_second for turn in without)),
        "tasks_per_second_with_pages": round(median(turn.tasks_per_second for turn in with_pages)),
        "share_kept": _ratio(with_pages, without, lambda turn: turn.tasks_per_second),
        "scheduler_microseconds_per_task_without": round(median(turn.scheduler_microseconds for turn in without), 2),
        "scheduler_microseconds_per_task_with_pages": round(
            median(turn.scheduler_microseconds for turn in with_pages), 2
        ),
        "scheduler_time_ratio": _ratio(with_pages, without, lambda turn: turn.scheduler_microseconds),
        "page_share_while_tasks_run": round(median(turn.page_share for turn in with_pages), 4),
        "load_average": psutil.getloadavg()[0],
    }


def _ratio(with_pages: list[Turn], without: list[Turn], of: Callable[[Turn], float]) -> float:
    """The median over pairs of consecutive turns."""
    return round(median(of(b) / of(a) for a, b in zip(without, with_pages, strict=True)), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the time")
    # `make bench` gives every benchmark the same options.
    parser.add_argument("--peers", choices=("none",), default="none", help="this benchmark has no peers")
    parser.add_argument("--wait-quiet", type=float, default=0.0, help="not needed: all that is compared runs in turn")
    parser.add_argument("--follow", type=int, default=0, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.follow:
        asyncio.run(follow_all(parsed.follow))
        return
    quick = parsed.quick
    turns, turn_seconds, cpu_seconds = (6, 2.0, 4.0) if quick else (20, 4.0, 30.0)
    print(json.dumps(asyncio.run(measured(100, 10_000, turns, turn_seconds, cpu_seconds))))


if __name__ == "__main__":
    main()
