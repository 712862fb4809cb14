"""The page over HTTP, compared with what the services report."""

import asyncio
import csv
import io
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from parlmesh.dashboard.pages import NAVIGATION
from parlmesh.mapek.knowledge import Knowledge
from parlmesh.mapek.types import CycleReport, Decision, Health, NodeReport, Status, Symptom
from parlmesh.rpc import open_channel
from parlmesh.security import Role
from parlmesh.security.tokens import write_token
from parlmesh.testing import serve
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from tests.integration.dashboard.conftest import FakeLearning, PageClient, page
from tests.integration.scheduler_service.conftest import Client, RemoteActor, noop, scheduler_of


class World:
    """A scheduler with one actor that the test controls, a learner, and a client of the scheduler."""

    def __init__(self, client: Client, actor: RemoteActor, learning: FakeLearning, settings: dict[str, Any]) -> None:
        self.client = client
        self.actor = actor
        self.learning = learning
        self.settings = settings

    async def fail(self, task_id: str, message: str) -> None:
        await self.client.submit(noop(task_id, max_attempts=1))
        (held,) = await self.actor.take()
        result = fleet_pb.TaskResult(lease=held.lease)
        result.failure.CopyFrom(task_pb2.Failure(reason="HANDLER_ERROR", message=message))
        await self.actor.send(results=[result], credits=1)
        await self.client.outcomes([task_id])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    learning = FakeLearning()  # type: ignore[abstract]  # the rest is not served
    async with (
        scheduler_of() as scheduler,
        serve(learning.services) as learner,
        open_channel(scheduler.server.address) as channel,
    ):
        actor = RemoteActor(channel)
        await actor.connect("edge-a")
        settings = {"scheduler": scheduler.server.address, "learner": learner}
        yield World(Client(channel), actor, learning, settings)
        await actor.close()


@pytest.fixture
async def shown(world: World) -> AsyncIterator[PageClient]:
    async with page(**world.settings) as client:
        yield client


def csrf_of(text: str) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', text)
    assert found is not None
    return found[1]


async def test_no_link_is_dead(world: World, shown: PageClient) -> None:
    await world.fail("job/1", "no good")
    seen: set[str] = set()
    waiting = list(NAVIGATION)
    while waiting:
        path = waiting.pop()
        answer = await shown.get(path)
        assert answer.status == 200, (path, answer.text)
        seen.add(path)
        for link in re.findall(r'(?:href|src)="([^"#]+)"', answer.text):
            assert not link.startswith(("/", "http:", "https:", "//")), f"{link} in {path} works under no prefix"
            name = link.replace("&amp;", "&").removeprefix("./")
            if name not in seen and name not in waiting and not name.startswith("static"):
                waiting.append(name)
    assert {"task?id=job/1", "run?id=cart", "round?number=1", "job?id=job", "tasks?state=failed"} <= seen


async def test_the_page_shows_the_fleet_as_the_scheduler_reports_it(world: World, shown: PageClient) -> None:
    urgent = noop("urgent")
    urgent.priority = task_pb2.PRIORITY_CRITICAL
    await world.client.submit(noop("held"), noop("1"), noop("2"), urgent)
    await world.actor.take()
    # An idle page's data may be a second old.
    shown.site.fleet.answers.forget()
    text = (await shown.get("")).text
    counts = dict(re.findall(r'data-priority="(\w+)">([\d,]+)<', text))
    statistics = await world.client.statistics()
    assert counts == {name: str(count) for name, count in statistics.queued_by_priority.items()}
    assert "edge-a" in text
    assert "evaluation 44.0 · goal 50" in text


async def test_a_task_tells_why_it_failed_and_where(world: World, shown: PageClient) -> None:
    await world.fail("bad", 'no good\n  File "mine.py", line 7\n    <script>alert(1)</script>')
    text = (await shown.get("task?id=bad")).text
    assert "no good" in text
    assert "File &#34;mine.py&#34;, line 7" in text
    assert "<script>alert" not in text
    assert "HANDLER_ERROR" in (await shown.get("tasks?state=failed")).text
    assert "bad" not in re.sub('bad"', "", (await shown.get("tasks?state=succeeded")).text.partition("<main")[2])


async def test_lists_are_exported_and_no_cell_is_a_formula(world: World, shown: PageClient) -> None:
    await world.fail("=1+1", "no good")
    await world.client.submit(noop("fine"))
    rows = json.loads((await shown.get("export?what=tasks&format=json")).text)
    assert [row["task_id"] for row in rows] == ["fine", "=1+1"]
    failed = await shown.get("export?what=tasks&format=csv&state=failed")
    assert [row["task_id"] for row in csv.DictReader(io.StringIO(failed.text))] == ["'=1+1"]
    assert failed.headers["content-disposition"] == 'attachment; filename="tasks.csv"'
    for what in ("actors", "runs", "history"):
        assert (await shown.get(f"export?what={what}&format=csv")).status == 200
    assert (await shown.get("export?what=secrets")).status == 400


async def test_ratings_of_self_play_are_listed_beside_their_models_best_first(world: World, shown: PageClient) -> None:
    assert ">rating<" not in (await shown.get("models")).text
    assert "Ratings" not in (await shown.get("run?id=cart")).text
    newest, best = world.learning.models
    newest.metadata.update({"elo": 35.4, "elo_error": 21.0, "match_games": 64.0, "steps": 9000})
    best.metadata.update({"elo": 1210.6, "elo_error": 18.2, "match_games": 1.0, "steps": 3000})
    world.learning.curves["selfplay/elo"] = [0.0, 700.0, 1210.6]
    shown.site.fleet.answers.forget()
    text = (await shown.get("models?again=1")).text
    assert "+35 ± 21 in 64 games" in text
    assert "+1,211 ± 18 in 1 game<" in text
    text = (await shown.get("run?id=cart&again=1")).text
    rows = re.findall(r'<th scope="row" class="n">(\d+)</th><td class="n">([^<]*)</td>', text)
    assert [version for version, _ in rows] == ["3", "9"]
    assert 'id="chart-rating"' in text


async def test_operators_cancel_pause_and_promote(world: World, shown: PageClient) -> None:
    await world.client.submit(*(noop(str(number)) for number in range(5)))
    await world.actor.take()
    csrf = csrf_of((await shown.get("tasks")).text)
    answer = await shown.post("do/cancel", {"csrf": csrf, "task": ["1", "2"], "chosen": "yes"})
    assert answer.status == 303
    assert "2 tasks cancelled" in (await shown.get(answer.headers["location"].removeprefix("../"))).text
    unconfirmed = await shown.post("do/cancel", {"csrf": csrf, "matching": "yes"})
    assert "needs the tick" in (await shown.get(unconfirmed.headers["location"].removeprefix("../"))).text
    await shown.post("do/cancel", {"csrf": csrf, "matching": "yes", "really": "yes", "query": "state=queued"})
    states = {
        task.spec.task_id: task.state for task in (await world.client.call("ListTasks", pb.ListTasksRequest())).tasks
    }
    assert [name for name, state in states.items() if state == task_pb2.TASK_STATE_CANCELLED] == ["4", "3", "2", "1"]
    await shown.post("do/actors", {"csrf": csrf, "actor": "edge-a", "verb": "pause"})
    actors = (await world.client.call("ListActors", pb.ListActorsRequest())).actors
    assert [actor.state for actor in actors] == [pb.ACTOR_STATE_PAUSED]
    await shown.post("do/promote", {"csrf": csrf, "run": "cart", "version": "9"})
    assert [model.promoted for model in world.learning.models] == [True, False]
    await shown.post("do/steer", {"csrf": csrf, "run": "cart", "verb": "pause"})
    assert world.learning.steered == ["pause cart"]


async def test_forms_of_other_sites_and_of_readers_change_nothing(world: World, tmp_path: Path) -> None:
    await world.client.submit(noop("kept"))
    tokens = {role: write_token(tmp_path, f"a-{role}", role, force=False)[0] for role in (Role.READER, Role.OPERATOR)}
    async with page(**world.settings, tokens=tmp_path / "tokens.yaml") as shown:
        refused = await shown.get("tasks?state=failed")
        assert (refused.status, refused.headers["location"]) == (303, "login?to=tasks%3Fstate%3Dfailed")
        assert (await shown.get("events?page=tasks")).status == 401
        assert (await shown.get("export?what=tasks")).status == 401
        assert (await shown.post("login", {"token": "guess"})).status == 403
        assert (await shown.post("do/cancel", {"task": "kept"})).status == 401
        entered = await shown.post("login?to=tasks", {"token": tokens[Role.READER].read_text()})
        assert (entered.status, entered.headers["location"]) == (303, "tasks")
        assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in entered.headers["set-cookie"].split(";")}
        text = (await shown.get("tasks")).text
        assert "Cancel chosen" not in text
        form = {"csrf": csrf_of(text), "task": "kept", "chosen": "yes"}
        assert (await shown.post("do/cancel", form)).status == 403
        shown.cookie = ""
        assert (await shown.post("login?to=//evil.example", {"token": tokens[Role.OPERATOR].read_text()})).headers[
            "location"
        ] == "./"
        form["csrf"] = csrf_of((await shown.get("tasks")).text)
        assert (await shown.post("do/cancel", {**form, "csrf": "0"})).status == 403
        assert (await shown.post("do/cancel", form, origin="https://evil.example")).status == 403
        assert (await shown.post("do/cancel", form, sec_fetch_site="cross-site")).status == 403
        assert (await world.client.get("kept")).state != task_pb2.TASK_STATE_CANCELLED
        assert (await shown.post("do/cancel", form, origin=shown.url.rstrip("/"))).status == 303
        assert (await world.client.get("kept")).state == task_pb2.TASK_STATE_CANCELLED


async def test_a_foreign_name_that_points_here_is_refused(shown: PageClient) -> None:
    assert (await shown.get("", host="evil.example")).status == 421
    headers = (await shown.get("")).headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


async def test_a_wrong_request_is_answered_with_a_sentence(shown: PageClient) -> None:
    missing = await shown.get("task?id=nobody")
    assert missing.status == 404
    assert "nobody" in missing.text
    assert (await shown.get("tasks?state=odd")).status == 400
    assert (await shown.get("?from=many")).status == 400
    assert (await shown.get("nothing")).status == 404
    assert (await shown.post("do/cancel", {"csrf": "0", "task": "x" * (1 << 20)})).status == 400


async def test_many_pages_cost_the_scheduler_one_look(world: World, shown: PageClient) -> None:
    await shown.get("")
    before = shown.site.fleet.answers.asked
    await asyncio.gather(*(shown.get("") for _ in range(20)))
    assert shown.site.fleet.answers.asked - before <= 12


async def test_a_page_without_a_scheduler_or_a_learner_says_so(world: World) -> None:
    async with page(scheduler="127.0.0.1:1", learner="") as shown:
        answer = await shown.get("")
        assert answer.status == 200
        assert "the scheduler at 127.0.0.1:1 does not answer" in (await shown.get("")).text
        assert "started without a learner" in (await shown.get("runs")).text


async def test_it_works_under_a_forwarded_prefix(world: World) -> None:
    async with page(**world.settings, prefix="/deep/fleet") as shown:
        assert (await shown.get("tasks")).status == 200
        assert (await shown.get("static/page.js")).status == 200


async def test_logs_of_dead_processes_are_shown_too(world: World, tmp_path: Path) -> None:
    (tmp_path / "run" / "logs").mkdir(parents=True)
    line = {"time": "2026-01-01T00:00:00Z", "level": "error", "event": "task_failed", "task_id": "bad", "w": "<b>"}
    (tmp_path / "run" / "logs" / "actor-9.log").write_text(json.dumps(line) + "\nSegmentation fault\n")
    await world.fail("bad", "no good")
    async with page(**world.settings, logs=tmp_path) as shown:
        text = (await shown.get("logs?process=actor-9")).text
        assert "Segmentation fault" in text
        assert "w=&lt;b&gt;" in text
        assert "task_failed task_id=bad" in (await shown.get("task?id=bad")).text
        assert (await shown.get("logs?process=../../etc/passwd")).status == 404


async def test_the_mesh_is_shown_by_health_with_what_its_loop_did(tmp_path: Path) -> None:
    symptom = Symptom("disk_full", "disk", 0.99, 0.9, "critical", "99 % used")
    decision = Decision(
        "d1", 1, "edge-2", symptom, action="clean", status=Status.WORKED, started=10.0, rule="disk_full"
    )
    reports = [NodeReport("edge-1", Health.HEALTHY), NodeReport("edge-2", Health.SICK, decisions=[decision])]
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        knowledge.save([decision])
        knowledge.end_cycle(CycleReport(1, 10.0, 1.0, reports), {})
    async with page(scheduler="", learner="", mapek=tmp_path / "k.sqlite") as shown:
        text = (await shown.get("mesh")).text
        assert 'edge-1</b><span class="state good">healthy' in text
        assert 'edge-2</b><span class="state bad">sick' in text
        assert "disk_full" in text
        assert "worked" in text
    async with page(scheduler="", learner="", mapek=tmp_path / "none.sqlite") as shown:
        assert (await shown.get("mesh")).status == 404
