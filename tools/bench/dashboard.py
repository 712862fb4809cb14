"""What the web page costs: its own CPU, the first paint, and tasks a second with pages open beside none.

python tools/bench/dashboard.py [--quick] prints one JSON line. Pages are read as browsers read them, by server-sent
events; the first paint is Chromium's own word where it is installed, else null. The two rates come from turns in one
run, so that a busy machine slows both.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import time
from pathlib import Path

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


async def rate(controller: PARLController, seconds: float) -> float:
    """No-op tasks a second, from submit to outcome."""
    done, started = 0, time.monotonic()
    while time.monotonic() - started < seconds:
        await controller.execute_parallel([TaskRequest("noop")] * 2_000)
        done += 2_000
    return done / (time.monotonic() - started)


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
            await tab.goto(f"http://127.0.0.1:{port}/")
            await tab.wait_for_function(script)
            found.append(await tab.evaluate(script))
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
        # A wrapper's child, where there is one, is what serves.
        server = max([server, *server.children(recursive=True)], key=lambda each: each.memory_info().rss)
        without: list[float] = []
        with_pages: list[float] = []
        bytes_taken: list[int] = []
        await rate(controller, turn_seconds / 2)
        for turn in range(turns):
            # Which comes first changes, so that a machine that grows busier or quieter favours neither.
            for watched in (turn % 2 == 1, turn % 2 == 0):
                names = PAGES if watched else ()
                open_pages = [asyncio.create_task(follow(port, name, bytes_taken)) for name in names]
                (with_pages if watched else without).append(await rate(controller, turn_seconds))
                for each in open_pages:
                    each.cancel()
                await asyncio.gather(*open_pages, return_exceptions=True)
        # Actors that work would hold the short tasks of the whole queue in advance.
        await controller.pause([each.actor_id for each in await controller.list_actors()])
        await controller.submit_tasks([TaskRequest("noop")] * queued)
        bytes_taken.clear()
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
        "tasks_per_second_without": round(statistics.median(without)),
        "tasks_per_second_with_pages": round(statistics.median(with_pages)),
        "share_kept": round(statistics.median(b / a for a, b in zip(without, with_pages, strict=True)), 4),
        "load_average": psutil.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the time")
    # `make bench` gives every benchmark the same options.
    parser.add_argument("--peers", choices=("none",), default="none", help="there is none to compare with here")
    parser.add_argument("--wait-quiet", type=float, default=0.0, help="not needed: all that is compared runs in turn")
    quick = parser.parse_args().quick
    turns, turn_seconds, cpu_seconds = (2, 2.0, 4.0) if quick else (8, 6.0, 30.0)
    print(json.dumps(asyncio.run(measured(100, 10_000, turns, turn_seconds, cpu_seconds))))


if __name__ == "__main__":
    main()
