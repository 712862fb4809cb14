"""The learner as the scheduler's client, against a scheduler that refuses."""

import asyncio
import contextlib
from typing import Any

import grpc
import pytest

from learner.sources.scheduler_client import Dispatcher
from parlmesh.errors import InvalidInput
from parlmesh.rpc import open_channel
from parlmesh.rpc.server import Service
from parlmesh.testing import serve, wait_until_async
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceServicer, add_SchedulerServiceServicer_to_server

WAIT = 60.0


# The generated class is abstract for mypy.
_Servicer: Any = SchedulerServiceServicer


class Refusing(_Servicer):  # type: ignore[misc]
    """Takes no task while it has a refusal; then ends each one at once."""

    def __init__(self):
        self.refusal = None
        # The one kind that is refused; None = all.
        self.refused = None
        self.tries = 0
        self.tasks, self.cancelled, self.leftovers = [], [], []
        self.forgotten = set()
        self.outcomes: asyncio.Queue[task_pb2.Outcome] = asyncio.Queue()

    @property
    def service(self):
        return Service(
            "parlmesh.v1.SchedulerService", lambda server: add_SchedulerServiceServicer_to_server(self, server)
        )

    async def SubmitTasks(self, request, context):
        self.tries += 1
        if self.refusal is not None and (self.refused is None or request.tasks[0].kind == self.refused):
            raise self.refusal
        self.tasks += [task.task_id for task in request.tasks]
        return pb.SubmitTasksResponse(task_ids=self.tasks)

    async def WatchTasks(self, request, context):
        while True:
            yield pb.WatchTasksResponse(outcomes=[await self.outcomes.get()])

    async def ListTasks(self, request, context):
        names = self.leftovers.pop(0) if self.leftovers else []
        tasks = [task_pb2.Task(spec=task_pb2.TaskSpec(task_id=name)) for name in names]
        return pb.ListTasksResponse(tasks=tasks, next_page_token="more" if self.leftovers else "")

    async def CancelTasks(self, request, context):
        if self.forgotten & set(request.task_ids):
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown")
        self.cancelled += request.task_ids
        return pb.CancelTasksResponse()

    async def GetTask(self, request, context):
        await context.abort(grpc.StatusCode.NOT_FOUND, "unknown")


@contextlib.asynccontextmanager
async def dispatching(on_outcome, leftovers=()):
    scheduler, obstacles = Refusing(), list[str]()
    scheduler.leftovers = list(leftovers)
    async with serve([scheduler.service]) as address, open_channel(address) as channel:
        dispatcher = Dispatcher(channel, "learner-run", on_outcome, obstacles.append)
        running = asyncio.ensure_future(dispatcher.run())
        yield scheduler, dispatcher, obstacles
        assert not running.done()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("reason", ["UNKNOWN_KIND", "INVALID_INPUT"])
async def test_a_refused_submit_is_said_and_tried_again_until_it_is_taken(reason):
    async with dispatching(lambda outcome: None) as (scheduler, dispatcher, obstacles):
        scheduler.refusal = InvalidInput("no actor has offered the kind", reason=reason)
        (task_id,) = dispatcher.submit([task_pb2.TaskSpec(kind="rollout")])
        await wait_until_async(lambda: scheduler.tries >= 3, WAIT)
        assert obstacles[-1] == "the scheduler takes no tasks: no actor has offered the kind"
        assert scheduler.tasks == []
        scheduler.refusal = None
        await wait_until_async(lambda: scheduler.tasks == [task_id], WAIT)
        await wait_until_async(lambda: obstacles[-1] == "", WAIT)


async def test_a_submit_that_a_stopping_scheduler_cut_off_is_tried_again(monkeypatch):
    cut_off, submit = [2], Refusing.SubmitTasks

    async def cut(self, request, context):
        if cut_off[0]:
            cut_off[0] -= 1
            await context.abort(grpc.StatusCode.CANCELLED, "")
        return await submit(self, request, context)

    monkeypatch.setattr(Refusing, "SubmitTasks", cut)
    async with dispatching(lambda outcome: None) as (scheduler, dispatcher, _):
        (task_id,) = dispatcher.submit([task_pb2.TaskSpec(kind="rollout")])
        await wait_until_async(lambda: scheduler.tasks == [task_id], WAIT)
    assert cut_off == [0]


async def test_a_task_that_is_still_refused_is_not_lost_and_can_be_taken_back(monkeypatch):
    monkeypatch.setattr("learner.sources.scheduler_client._SWEEP_SECONDS", 0.05)
    outcomes: list[task_pb2.Outcome] = []
    async with dispatching(outcomes.append) as (scheduler, dispatcher, _):
        scheduler.refusal = InvalidInput("no")
        kept, dropped = dispatcher.submit([task_pb2.TaskSpec(kind="a"), task_pb2.TaskSpec(kind="a")])
        await wait_until_async(lambda: scheduler.tries >= 3, WAIT)
        assert outcomes == [], "the scheduler was not asked for what it never took"
        await dispatcher.cancel([dropped])
        assert scheduler.cancelled == [dropped]
        scheduler.refusal = None
        await wait_until_async(lambda: scheduler.tasks == [kept], WAIT)
        # A try whose answer was lost may have brought it there.
        await wait_until_async(lambda: scheduler.cancelled == [dropped, dropped], WAIT)


async def test_a_kind_that_nobody_offers_holds_up_no_other_and_is_given_up_with_its_task():
    async with dispatching(lambda outcome: None) as (scheduler, dispatcher, obstacles):
        scheduler.refusal, scheduler.refused = InvalidInput("nobody offers it", reason="UNKNOWN_KIND"), "evaluate"
        (stuck,) = dispatcher.submit([task_pb2.TaskSpec(kind="evaluate")])
        await wait_until_async(lambda: dispatcher.refused, WAIT)
        rollouts = dispatcher.submit([task_pb2.TaskSpec(kind="rollout") for _ in range(3)])
        await wait_until_async(lambda: scheduler.tasks == rollouts, WAIT)
        assert dispatcher.refused == {"evaluate": "the scheduler takes no tasks: nobody offers it"}
        assert obstacles[-1] == "the scheduler takes no tasks: nobody offers it"
        await dispatcher.cancel([stuck])
        await wait_until_async(lambda: not dispatcher.refused, WAIT)
        tries = scheduler.tries
        dispatcher.submit([task_pb2.TaskSpec(kind="rollout")])
        await wait_until_async(lambda: len(scheduler.tasks) == 4, WAIT)
        assert (obstacles[-1], scheduler.tries) == ("", tries + 1)


async def test_a_task_that_the_scheduler_has_forgotten_keeps_no_other_from_being_taken_back():
    async with dispatching(lambda outcome: None) as (scheduler, dispatcher, _):
        names = dispatcher.submit([task_pb2.TaskSpec(kind="a") for _ in range(7)])
        await wait_until_async(lambda: scheduler.tasks == names, WAIT)
        scheduler.forgotten = {names[1], names[6]}
        await dispatcher.cancel(names)
        # Some of them twice, while the answer to their submit is on its way.
        assert set(scheduler.cancelled) == set(names) - scheduler.forgotten


async def test_an_outcome_that_nobody_can_use_costs_only_itself():
    seen = []

    def on_outcome(outcome):
        seen.append(outcome.task_id)
        raise KeyError("nothing in it")

    async with dispatching(on_outcome) as (scheduler, dispatcher, _):
        names = dispatcher.submit([task_pb2.TaskSpec(kind="a"), task_pb2.TaskSpec(kind="a")])
        for name in names:
            scheduler.outcomes.put_nowait(task_pb2.Outcome(task_id=name))
        await wait_until_async(lambda: seen == names, WAIT)


async def test_all_that_a_life_before_left_is_cancelled_and_nothing_else():
    first, second = "learner-run-01234567-1", "learner-run-01234567-2-89abcdef"
    others = ["learner-run-2-01234567-1-89abcdef", "mine", "learner-running-01234567-1"]
    async with dispatching(lambda outcome: None, [[first, *others], [second]]) as (scheduler, _, _obstacles):
        await wait_until_async(lambda: scheduler.cancelled == [first, second], WAIT)


async def test_more_tasks_than_a_scheduler_takes_at_once_are_sent_in_parts():
    async with dispatching(lambda outcome: None) as (scheduler, dispatcher, _):
        names = dispatcher.submit([task_pb2.TaskSpec(kind="a") for _ in range(2_500)])
        await wait_until_async(lambda: scheduler.tasks == names, WAIT)
        assert scheduler.tries == 3


def test_nobody_can_guess_the_id_of_the_next_task():
    names: set[str] = set()

    async def submit():
        async with open_channel("127.0.0.1:1") as channel:
            dispatcher = Dispatcher(channel, "learner-run", lambda outcome: None)
            names.update(
                name.rsplit("-", 1)[1] for name in dispatcher.submit([task_pb2.TaskSpec() for _ in range(1_000)])
            )

    asyncio.run(submit())
    assert len(names) > 990
