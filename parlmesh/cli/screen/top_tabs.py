"""The other tabs of `top`: actors, tasks, runs and rounds, each in a table that fits the terminal."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Never

import grpc
import grpc.aio
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parlmesh.cli.connection import explained
from parlmesh.cli.screen.ages import age_of
from parlmesh.cli.screen.fleet_view import number, state_name
from parlmesh.cli.screen.output_tables import enum_word
from parlmesh.harmless_text import visible
from parlmesh.rpc import open_channel, pages
from parlmesh.security import SecurityConfig
from parlmesh.v1.federation_service_pb2 import ListRoundsRequest, RoundState
from parlmesh.v1.federation_service_pb2_grpc import FederationServiceStub
from parlmesh.v1.scheduler_service_pb2 import ActorState, ListActorsRequest, ListTasksRequest
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from parlmesh.v1.task_pb2 import Priority, TaskState
from parlmesh.v1.training_service_pb2 import ListTrainingsRequest
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub

NAMES = ("run", "fleet", "tasks", "runs", "rounds")
MOST_ROWS = 200
CALL_SECONDS = 2.0
REFRESH_SECONDS = 1.0
COLUMNS = {
    "fleet": ("actor", "node", "state", ">slots", ">running", ">completed", ">failed", ">version"),
    "tasks": ("task", "kind", "priority", "state", "actor", "submitted"),
    "runs": ("run", "state", ">steps", ">steps/s", ">return", ">evaluation", ">lag"),
    "rounds": (">round", "state", ">nodes", ">refused", ">seconds", ">version"),
}


@dataclass
class Tabs:
    """The current tab and its rows; keys change it."""

    current: str = "run"
    rows: list[list[str]] = field(default_factory=list)
    trouble: str = ""

    chosen: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when another tab is chosen, so that its rows are fetched immediately."""

    def press(self, key: str) -> None:
        """1 to 5 choose a tab, Tab goes to the next; other keys do nothing."""
        if key == "\t":
            self._choose(NAMES[(NAMES.index(self.current) + 1) % len(NAMES)])
        elif key.isdecimal() and 1 <= int(key) <= len(NAMES):
            self._choose(NAMES[int(key) - 1])

    def _choose(self, name: str) -> None:
        if name != self.current:
            self.current, self.rows, self.trouble = name, [], ""
            self.chosen.set()


def heading(tabs: Tabs) -> Text:
    """The names of the tabs with their keys, the current one highlighted."""
    parts = [
        (f" {index} {name} ", "bold reverse" if name == tabs.current else "dim") for index, name in enumerate(NAMES, 1)
    ]
    return Text.assemble(*parts, (" Tab: next", "dim"))


def render_tab(tabs: Tabs, height: int) -> RenderableType:
    """The table of the current tab, cut to the height of the terminal."""
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, expand=False)
    for name in COLUMNS[tabs.current]:
        right = name.startswith(">")
        table.add_column(
            name.removeprefix(">"), justify="right" if right else "left", no_wrap=True, overflow="ellipsis"
        )
    shown = tabs.rows[: max(1, height - 7)]
    for row in shown:
        table.add_row(*(Text(visible(cell)) for cell in row))
    left = len(tabs.rows) - len(shown)
    below = tabs.trouble or ("nothing yet" if not tabs.rows else f"{left} more" if left else "")
    return Group(heading(tabs), table, Text(below, style="yellow" if tabs.trouble else "dim"))


async def keep_current(tabs: Tabs, scheduler: str, learner: str, security: SecurityConfig) -> Never:
    """Refreshes the current tab until cancelled."""
    while True:
        tabs.chosen.clear()
        await refresh(tabs, scheduler, learner, security)
        waiting = asyncio.ensure_future(tabs.chosen.wait())
        await asyncio.wait([waiting], timeout=REFRESH_SECONDS)
        waiting.cancel()


async def refresh(tabs: Tabs, scheduler: str, learner: str, security: SecurityConfig) -> None:
    """Fetches the rows of the current tab once."""
    name = tabs.current
    if name == "run":
        return
    of_scheduler = name in ("fleet", "tasks")
    service, address = ("scheduler", scheduler) if of_scheduler else ("learner", learner)
    readers: dict[str, Callable[[grpc.aio.Channel], Awaitable[list[list[str]]]]] = {
        "fleet": _fleet,
        "tasks": _tasks,
        "runs": _runs,
        "rounds": _rounds,
    }
    async with open_channel(address, security) as channel:
        try:
            rows = await readers[name](channel)
            trouble = ""
        except grpc.aio.AioRpcError as error:
            rows, trouble = [], explained(error, service, address).message
    if tabs.current == name:
        tabs.rows, tabs.trouble = rows, trouble


async def _fleet(channel: grpc.aio.Channel) -> list[list[str]]:
    listing = pages(partial(SchedulerServiceStub(channel).ListActors, timeout=CALL_SECONDS), ListActorsRequest())
    actors = [actor async for page in listing for actor in page.actors]
    return [
        [
            actor.actor_id,
            actor.node_id,
            enum_word(ActorState.Name(actor.state), "ACTOR_STATE_"),
            str(actor.slots),
            str(actor.running_tasks),
            f"{actor.completed_tasks:,}",
            f"{actor.failed_tasks:,}",
            str(actor.policy_version or "–"),
        ]
        for actor in actors
    ]


async def _tasks(channel: grpc.aio.Channel) -> list[list[str]]:
    request = ListTasksRequest(page_size=MOST_ROWS)
    answer = await SchedulerServiceStub(channel).ListTasks(request, timeout=CALL_SECONDS)
    now = time.time()
    return [
        [
            task.spec.task_id,
            task.spec.kind,
            enum_word(Priority.Name(task.spec.priority), "PRIORITY_"),
            enum_word(TaskState.Name(task.state), "TASK_STATE_"),
            task.outcome.actor_id or task.actor_id or "–",
            age_of(task.submit_time, now),
        ]
        for task in answer.tasks
    ]


async def _runs(channel: grpc.aio.Channel) -> list[list[str]]:
    answer = await TrainingServiceStub(channel).ListTrainings(ListTrainingsRequest(), timeout=CALL_SECONDS)
    rows = []
    for training in answer.trainings:
        progress = training.progress
        rows.append(
            [
                training.run_id,
                state_name(training.state),
                f"{progress.steps:,}",
                f"{progress.steps_per_second:,.0f}",
                number(progress.episode_return if progress.HasField("episode_return") else None),
                number(progress.evaluation_return if progress.HasField("evaluation_return") else None),
                f"{progress.policy_lag:.1f}",
            ]
        )
    return rows


async def _rounds(channel: grpc.aio.Channel) -> list[list[str]]:
    request = ListRoundsRequest(page_size=MOST_ROWS)
    answer = await FederationServiceStub(channel).ListRounds(request, timeout=CALL_SECONDS)
    return [
        [
            str(each.number),
            enum_word(RoundState.Name(each.state), "ROUND_STATE_"),
            str(sum(1 for update in each.updates if not update.refusal)),
            str(sum(1 for update in each.updates if update.refusal)),
            f"{each.seconds:.1f}",
            str(each.policy_version or "–"),
        ]
        for each in answer.rounds
    ]
