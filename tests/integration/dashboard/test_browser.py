"""The page in a real Chromium shows what the fleet does, for every reader, under any path, offline."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from parlmesh.rpc import open_channel
from parlmesh.testing import serve
from parlmesh.v1 import scheduler_service_pb2 as pb
from tests.integration.dashboard.conftest import FakeLearning, PageClient, page
from tests.integration.scheduler_service.conftest import Client, RemoteActor, noop, scheduler_of

CHROMIUM = shutil.which("chromium") or ""
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]
MILLISECONDS = 60_000
pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed: apt-get install chromium"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        # Every context has its own profile, in memory.
        started = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        await started.close()


class Scene:
    """A fleet, its page, and a browser tab with it."""

    def __init__(self, client: Client, actor: RemoteActor, shown: PageClient, tab: Any) -> None:
        self.client = client
        self.actor = actor
        self.shown = shown
        self.tab = tab
        self.troubles: list[str] = []
        self.foreign: list[str] = []
        tab.on("pageerror", lambda error: self.troubles.append(str(error)))
        tab.on("console", lambda said: self.troubles.append(said.text) if said.type == "error" else None)
        tab.on("request", lambda asked: None if asked.url.startswith(shown.url) else self.foreign.append(asked.url))

    async def open(self, path: str = "") -> None:
        answer = await self.tab.goto(self.shown.url + path)
        assert answer.status == 200

    async def reads(self, selector: str, text: str) -> None:
        """Waits until the element has this text, without reloading the page."""
        await self.tab.locator(selector, has_text=text).first.wait_for(timeout=MILLISECONDS)


@asynccontextmanager
async def scene(browser: Any, *, width: int = 1280, dark: bool = False, **settings: Any) -> AsyncIterator[Scene]:
    async with (
        scheduler_of() as scheduler,
        serve(FakeLearning().services) as learner,  # type: ignore[abstract]  # the rest is not served
        open_channel(scheduler.server.address) as channel,
        page(scheduler=scheduler.server.address, learner=learner, **settings) as shown,
    ):
        actor = RemoteActor(channel)
        await actor.connect("edge-a")
        context = await browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
        )
        yield Scene(Client(channel), actor, shown, await context.new_page())
        await context.close()
        await actor.close()


async def test_the_open_page_follows_the_fleet_and_keeps_what_its_reader_did(browser: Any) -> None:
    async with scene(browser, prefix="/sub") as seen:
        await seen.open()
        find = seen.tab.locator("input[name=q]")
        await find.fill("edge")
        await seen.tab.locator("input[name=actor]").check()
        await seen.reads("#live", "live")
        await seen.client.submit(noop("held"), *(noop(str(number)) for number in range(40)))
        await seen.actor.take()
        await seen.reads("[data-priority=normal]", "40")
        statistics = await seen.client.statistics()
        assert statistics.queued_by_priority["normal"] == 40
        assert await seen.tab.locator("input[name=actor]").is_checked()
        assert await find.input_value() == "edge"
        await seen.actor.close()
        await seen.reads("#actors", "lost")
        assert seen.troubles == []
        assert seen.foreign == []


async def test_a_paused_page_stays_unchanged_until_resumed(browser: Any) -> None:
    async with scene(browser) as seen:
        await seen.open()
        await seen.reads("#live", "live")
        await seen.tab.locator("#pause").click()
        await seen.reads("#live", "paused")
        await seen.client.submit(noop("held"), noop("1"), noop("2"))
        await seen.actor.take()
        # Two updates by the page's process, neither of which reaches this tab.
        with seen.shown.site.pulse.watched():
            await seen.shown.site.pulse.next(await seen.shown.site.pulse.next(seen.shown.site.pulse.looks))
        assert await seen.tab.locator("[data-priority=normal]").inner_text() == "0"
        await seen.tab.locator("#pause").click()
        await seen.reads("[data-priority=normal]", "2")


async def test_ten_thousand_queued_tasks_are_shown_in_pages_and_cancelled_at_once(browser: Any) -> None:
    async with scene(browser) as seen:
        await seen.client.submit(noop("held"))
        await seen.actor.take()
        await seen.client.submit(*(noop(f"t-{number}") for number in range(10_000)))
        await seen.open("tasks?state=queued")
        assert await seen.tab.locator("tbody tr").count() == 100
        await seen.tab.locator("text=Older").click()
        await seen.reads("tbody", "t-9899")
        await seen.tab.locator("input[name=really]").check()
        await seen.tab.locator("text=Cancel all matching unfinished tasks").click()
        await seen.tab.locator(".said").wait_for(timeout=MILLISECONDS)
        assert await seen.tab.locator(".said").inner_text() == "10,000 tasks cancelled"
        # Whether "held" still runs depends on the machine: its lease is short.
        assert (await seen.client.statistics()).cancelled_tasks == 10_000
        assert seen.troubles == []


async def test_axe_finds_nothing_serious_and_nothing_overflows(browser: Any) -> None:
    from axe_playwright_python.async_playwright import Axe

    async with scene(browser, width=390, dark=True) as seen:
        await seen.client.submit(noop("job/1"), noop("job/2", dependencies=["job/1"]))
        for _ in range(2):
            await seen.actor.answer(*await seen.actor.take())
        await seen.client.outcomes(["job/1", "job/2"])
        await seen.client.submit(noop("held"), noop("queued"))
        for path in ("", "tasks", "task?id=job/2", "runs", "run?id=cart", "models", "rounds", "job?id=job"):
            await seen.open(path)
            await seen.reads("#live", "live")
            found = (await Axe().run(seen.tab)).response["violations"]
            serious = [each for each in found if each["impact"] in ("serious", "critical")]
            assert [(path, each["id"], each["nodes"][0]["html"]) for each in serious] == []
            assert await seen.tab.evaluate("document.documentElement.scrollWidth") <= 390
        await seen.open("run?id=cart")
        assert await seen.tab.locator(".chart canvas").count() == 1
        assert seen.troubles == []


async def test_an_actor_is_paused_by_keyboard_alone(browser: Any) -> None:
    async with scene(browser) as seen:
        await seen.open()
        await seen.reads("#actors", "edge-a")
        await seen.tab.locator("input[name=actor]").focus()
        await seen.tab.keyboard.press("Space")
        await seen.tab.locator("button[value=pause]").focus()
        await seen.tab.keyboard.press("Enter")
        await seen.reads(".said", "1 actor paused")
        actors = (await seen.client.call("ListActors", pb.ListActorsRequest())).actors
        assert [actor.state for actor in actors] == [pb.ACTOR_STATE_PAUSED]
        assert (await seen.client.call("ListTasks", pb.ListTasksRequest())).tasks == []
