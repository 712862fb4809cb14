from rich.console import Console

from parlmesh.cli.screen.top_tabs import COLUMNS, NAMES, Tabs, refresh, render_tab
from parlmesh.security import SecurityConfig
from parlmesh.testing import serve
from parlmesh.testing.tasks import FakeTasks
from parlmesh.v1 import scheduler_service_pb2 as pb


def test_keys_choose_and_tab_goes_round() -> None:
    tabs = Tabs()
    seen = []
    for key in ("2", "\t", "9", "x", "5", "\t"):
        tabs.press(key)
        seen.append(tabs.current)
    assert seen == ["fleet", "tasks", "tasks", "tasks", "rounds", "run"]


def test_another_tab_never_shows_the_rows_of_the_last_one() -> None:
    tabs = Tabs("fleet", rows=[["a"] * len(COLUMNS["fleet"])])
    tabs.press("3")
    assert (tabs.current, tabs.rows, tabs.chosen.is_set()) == ("tasks", [], True)


def test_every_tab_fits_eighty_columns_and_the_terminals_height() -> None:
    for name in NAMES[1:]:
        tabs = Tabs(name, rows=[["a-rather-long-name-of-something"] * len(COLUMNS[name])] * 50)
        console = Console(width=80, height=24, force_terminal=True, color_system=None)
        with console.capture() as captured:
            console.print(render_tab(tabs, 24))
        lines = captured.get().splitlines()
        assert max(map(len, lines)) <= 80
        assert len(lines) <= 24
        assert "more" in lines[-1]


async def test_the_fleet_is_filled_from_the_scheduler_and_its_absence_is_reported() -> None:
    fake = FakeTasks()
    fake.actors = [pb.Actor(actor_id="actor-0", node_id="n", state=pb.ACTOR_STATE_PAUSED, slots=2)]
    tabs = Tabs("fleet")
    async with serve([fake.service]) as address:
        await refresh(tabs, address, "127.0.0.1:1", SecurityConfig())
    assert [row[:4] for row in tabs.rows] == [["actor-0", "n", "paused", "2"]]
    tabs.press("5")
    await refresh(tabs, address, "127.0.0.1:1", SecurityConfig())
    assert "no learner answers at 127.0.0.1:1" in tabs.trouble
