"""What happens when the line to the scheduler breaks, stalls or is refused."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from parlmesh.client import ClientConfig, ClientCounts, OutcomeState, PARLController, TaskRequest
from parlmesh.config import ListenConfig
from parlmesh.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    FleetError,
    InvalidInput,
    NotFound,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from parlmesh.rpc.server import FleetServer
from parlmesh.security import SecurityConfig
from parlmesh.testing import free_port, serve
from parlmesh.testing.tasks import FakeTasks, succeeded
from parlmesh.v1 import task_pb2
from tests.parlmesh.client.conftest import QUICK

TASKS = [TaskRequest("echo", {"n": n}) for n in range(20)]


async def started(controller: PARLController, fake: FakeTasks) -> "asyncio.Future[list[int]]":
    """Twenty tasks that the scheduler holds and has not ended."""
    fake.run = lambda spec: None

    async def run() -> list[int]:
        return [outcome.unwrap()["n"] for outcome in await controller.execute_parallel(TASKS)]

    call = asyncio.ensure_future(run())
    await fake.until(lambda: len(fake.unfinished) == len(TASKS))
    return call


def counts(controller: PARLController) -> ClientCounts:
    """Without a call: the calls of some tests have no time."""
    assert controller._connection is not None
    return controller._connection.counts


async def end_all(fake: FakeTasks) -> None:
    for task_id in fake.unfinished:
        await fake.finish(succeeded(fake.specs[task_id]))


async def test_outcomes_that_came_while_the_stream_was_broken_are_found(
    controller: PARLController, fake: FakeTasks
) -> None:
    call = await started(controller, fake)
    await fake.end_watches()
    await end_all(fake)
    assert await call == list(range(20))
    assert len(fake.requests) == 1
    assert (await controller.get_statistics()).client.reconnects == 1


async def test_outcomes_after_a_reconnection_come_once(controller: PARLController, fake: FakeTasks) -> None:
    call = await started(controller, fake)
    await fake.end_watches()
    await fake.until(lambda: fake.watches == 2)  # the submitter's, and the search for the twenty
    await end_all(fake)
    assert await call == list(range(20))
    counts = (await controller.get_statistics()).client
    assert counts.received_outcomes == 20


async def test_tasks_that_the_scheduler_lost_are_submitted_again(controller: PARLController, fake: FakeTasks) -> None:
    call = await started(controller, fake)
    fake.forget(fake.unfinished[5:])
    fake.run = succeeded
    await fake.end_watches()
    await fake.until(lambda: len(fake.requests) > 1 and len(fake.unfinished) == 5)
    await end_all(fake)
    assert await call == list(range(20))
    assert (await controller.get_statistics()).client.resubmitted_tasks == 20


async def test_tasks_that_a_scheduler_lost_with_its_memory_are_submitted_again(fake: FakeTasks) -> None:
    fake.memory_id = 1
    async with serve([fake.service]) as address, await PARLController.connect(address, config=QUICK) as controller:
        call = await started(controller, fake)
        fake.forget(fake.unfinished[5:])
        fake.memory_id, fake.run = 2, succeeded
        await fake.end_watches()
        await fake.until(lambda: len(fake.requests) > 1 and len(fake.unfinished) == 5)
        await end_all(fake)
        assert await call == list(range(20))
        counts = (await controller.get_statistics()).client
        assert (counts.resubmitted_tasks, counts.forgotten_outcomes) == (15, 0)


async def test_tasks_whose_outcomes_a_scheduler_no_longer_keeps_are_not_run_again(fake: FakeTasks) -> None:
    fake.memory_id, fake.run = 1, lambda spec: None
    async with serve([fake.service]) as address, await PARLController.connect(address, config=QUICK) as controller:
        call = asyncio.ensure_future(controller.execute_parallel(TASKS))
        await fake.until(lambda: len(fake.unfinished) == len(TASKS))
        alone = await controller.submit_task("echo")
        requests = len(fake.requests)
        fake.forget(fake.unfinished[5:])
        await fake.end_watches()
        await fake.until(lambda: fake.watches == 2)
        await end_all(fake)
        outcomes = [*await call, await controller.result(alone)]
        assert [outcome.ok for outcome in outcomes] == [True] * 5 + [False] * 16
        assert {outcome.state for outcome in outcomes[5:]} == {OutcomeState.FORGOTTEN}
        with pytest.raises(NotFound, match=r"no longer kept \(the scheduler's retention\)") as error:
            outcomes[5].unwrap()
        assert error.value.reason == "OUTCOME_FORGOTTEN"
        counts = (await controller.get_statistics()).client
        assert (counts.resubmitted_tasks, counts.forgotten_outcomes, counts.pending_tasks) == (0, 16, 0)
        assert len(fake.requests) == requests


@pytest.mark.parametrize("remembers", [0, 3600])
async def test_a_request_without_an_answer_is_sent_again_only_while_its_outcome_would_be_known(
    fake: FakeTasks, remembers: int
) -> None:
    fake.memory_id, fake.remembers_seconds = 1, remembers
    async with serve([fake.service]) as address, await PARLController.connect(address, config=QUICK) as controller:
        fake.hold = asyncio.Event()
        call = asyncio.ensure_future(controller.execute_parallel(TASKS[:1]))
        await fake.until(lambda: len(fake.outcomes) == 1)  # it has run, and the receipt is still to come
        fake.forget()
        fake.hold = None
        await fake.end_watches()
        (outcome,) = await call
        assert outcome.state == (OutcomeState.SUCCEEDED if remembers else OutcomeState.FORGOTTEN)
        assert len(fake.requests) == (2 if remembers else 1)


async def test_the_ends_of_tasks_submitted_alone_survive_a_break_too(
    controller: PARLController, fake: FakeTasks
) -> None:
    fake.run = lambda spec: None
    task_id = await controller.submit_task("echo", {"n": 1})
    fake.forget()
    await fake.end_watches()
    await fake.until(lambda: task_id in fake.specs)
    await end_all(fake)
    assert (await controller.result(task_id)).unwrap() == {"n": 1}


async def test_an_outcome_that_is_sent_twice_is_counted_once(controller: PARLController, fake: FakeTasks) -> None:
    call = await started(controller, fake)
    first = fake.specs[fake.unfinished[0]]
    await fake.finish(succeeded(first))
    await fake.finish(succeeded(first, {"n": 99}))
    await end_all(fake)
    assert await call == list(range(20))
    assert (await controller.get_statistics()).client.foreign_outcomes == 1


async def test_a_scheduler_that_comes_back_at_its_address_is_found(fake: FakeTasks) -> None:
    listen = ListenConfig(port=free_port(), drain_seconds=0.1)
    config = ClientConfig(reconnect_seconds=0.05)

    def server() -> FleetServer:
        return FleetServer(listen=listen, security=SecurityConfig(), services=[fake.service])

    fake.run = lambda spec: None
    async with server():
        controller = await PARLController.connect(f"127.0.0.1:{listen.port}", config=config)
        call = await started(controller, fake)
    fake.forget()
    fake.run = succeeded
    submitting = asyncio.ensure_future(controller.submit_task("noop"))
    async with server():
        assert await call == list(range(20))
        assert (await controller.result(await submitting)).ok
        await controller.close()


async def test_a_full_queue_is_waited_for_as_long_as_the_scheduler_says(
    controller: PARLController, fake: FakeTasks
) -> None:
    refusals = 2

    def full(spec: task_pb2.TaskSpec) -> FleetError | None:
        nonlocal refusals
        refusals -= 1
        return ResourceExhausted("full", retry_after_seconds=0.01) if refusals >= 0 else None

    fake.refuse = full
    outcomes = await controller.execute_parallel(TASKS)
    assert all(outcome.ok for outcome in outcomes)
    assert [len(request) for request in fake.requests] == [20, 20, 20]


async def test_a_queue_that_will_never_take_it_is_an_error(controller: PARLController, fake: FakeTasks) -> None:
    fake.refuse = lambda spec: ResourceExhausted("larger than the queue")
    with pytest.raises(ResourceExhausted, match="larger than the queue"):
        await controller.submit_task("noop")


async def test_a_submit_that_is_never_accepted_ends_at_its_deadline_and_is_taken_back(fake: FakeTasks) -> None:
    fake.refuse = lambda spec: Unavailable("not now")
    async with (
        serve([fake.service]) as address,
        PARLController(address, config=ClientConfig(call_seconds=0.3)) as controller,
    ):
        with pytest.raises(DeadlineExceeded, match=r"accepted no tasks within 0\.3 s"):
            await controller.submit_task("noop", task_id="a")
        await fake.until(lambda: fake.cancelled == ["a"])
        assert counts(controller).pending_tasks == 0


async def test_a_stream_without_receipts_is_given_up_and_its_requests_are_sent_again(fake: FakeTasks) -> None:
    fake.hold = asyncio.Event()
    config = ClientConfig(call_seconds=0.1, reconnect_seconds=0.05)
    async with serve([fake.service]) as address, PARLController(address, config=config) as controller:
        call = asyncio.ensure_future(controller.execute_parallel(TASKS))
        await fake.until(lambda: len(fake.requests) >= 2)
        fake.hold.set()
        assert [outcome.unwrap()["n"] for outcome in await call] == list(range(20))
        assert counts(controller).reconnects >= 1


async def test_closing_ends_a_stream_that_is_given_up_at_the_same_moment(fake: FakeTasks) -> None:
    async with serve([fake.service]) as address:
        controller = await PARLController.connect(address)
        connection = controller._connection
        assert connection is not None
        connection._stream._stuck = True
        await asyncio.wait_for(controller.close(), 60)


async def test_one_bad_submit_among_many_harms_nobody_else(controller: PARLController, fake: FakeTasks) -> None:
    fake.refuse = lambda spec: FailedPrecondition(f"unknown kind {spec.kind}") if spec.kind == "bad" else None
    submits = [controller.submit_task("bad" if number == 3 else "noop") for number in range(8)]
    answers = await asyncio.gather(*submits, return_exceptions=True)
    assert isinstance(answers[3], FailedPrecondition)
    good = [answer for answer in answers if isinstance(answer, str)]
    assert len(good) == 7
    assert [(await controller.result(task_id)).ok for task_id in good] == [True] * 7


async def test_many_submits_at_once_share_requests(controller: PARLController, fake: FakeTasks) -> None:
    ids = await asyncio.gather(*(controller.submit_task("noop") for _ in range(500)))
    assert len(set(ids)) == 500
    assert len(fake.requests) <= 10


async def test_a_window_larger_than_a_request_is_sent_in_parts(fake: FakeTasks) -> None:
    config = ClientConfig(tasks_per_request=30, message_bytes=64 << 10)
    async with serve([fake.service]) as address, PARLController(address, config=config) as controller:
        outcomes = await controller.execute_parallel([TaskRequest("noop")] * 100)
        large = await controller.execute_parallel([TaskRequest("echo", {"text": "x" * 20_000})] * 10)
    assert all(outcome.ok for outcome in [*outcomes, *large])
    assert max(len(request) for request in fake.requests) == 30
    assert max(len(request) for request in fake.requests[-4:]) <= 2


async def test_an_error_that_no_reconnection_cures_ends_everything_at_once(
    controller: PARLController, fake: FakeTasks
) -> None:
    call = await started(controller, fake)
    await fake.end_watches(grpc.StatusCode.PERMISSION_DENIED)
    with pytest.raises(FleetError, match="as the test wishes"):
        await call
    with pytest.raises(FleetError, match="as the test wishes"):
        await controller.submit_task("noop")


async def test_a_submit_that_waits_through_a_reconnection_stays_all_or_none(
    controller: PARLController, fake: FakeTasks
) -> None:
    away = True

    def refuse(spec: task_pb2.TaskSpec) -> FleetError | None:
        if away:
            return Unavailable("not now")
        return FailedPrecondition("no such kind") if spec.kind == "bad" else None

    fake.refuse = refuse
    submitting = asyncio.ensure_future(controller.submit_tasks([TaskRequest("noop"), TaskRequest("bad")]))
    await fake.until(lambda: len(fake.requests) == 1)
    await fake.end_watches()
    await fake.until(lambda: fake.watches == 1)
    away = False
    with pytest.raises(FailedPrecondition, match="no such kind"):
        await submitting
    assert fake.specs == {}


async def test_an_outcome_that_is_missed_before_the_receipt_comes_is_found(
    controller: PARLController, fake: FakeTasks
) -> None:
    """The tasks are accepted and end while the stream is broken; the answer to the submit comes after all that."""
    held = asyncio.Event()
    fake.hold = held
    call = asyncio.ensure_future(controller.execute_parallel(TASKS))
    await fake.until(lambda: len(fake.requests) == 1)
    await fake.end_watches()
    await fake.until(lambda: fake.watches == 1)
    held.set()
    assert [outcome.unwrap()["n"] for outcome in await call] == list(range(20))


async def test_tasks_of_a_call_that_gave_up_are_not_sent_again(controller: PARLController, fake: FakeTasks) -> None:
    fake.refuse = lambda spec: ResourceExhausted("full", retry_after_seconds=0.01) if spec.kind == "late" else None
    late = asyncio.ensure_future(controller.execute_parallel([TaskRequest("late")]))
    await fake.until(lambda: len(fake.requests) > 1)
    late.cancel()
    await asyncio.wait([late])
    fake.refuse = lambda spec: None
    assert (await controller.execute_parallel([TaskRequest("noop")]))[0].ok
    assert [spec.kind for spec in fake.specs.values()] == ["noop"]


async def test_tasks_that_are_accepted_after_their_call_gave_up_are_cancelled_then(
    controller: PARLController, fake: FakeTasks
) -> None:
    fake.run = lambda spec: None
    fake.hold = asyncio.Event()
    call = asyncio.ensure_future(controller.execute_parallel(TASKS))
    await fake.until(lambda: len(fake.unfinished) == 20)
    call.cancel()
    await asyncio.wait([call])
    assert fake.cancelled == []
    fake.hold.set()
    await fake.until(lambda: not fake.unfinished)
    assert len(fake.cancelled) == 20


async def test_a_submit_that_is_cancelled_takes_its_tasks_back_once_they_are_accepted(fake: FakeTasks) -> None:
    fake.run = lambda spec: None
    fake.hold = asyncio.Event()
    async with serve([fake.service]) as address, PARLController(address) as controller:
        submit = asyncio.ensure_future(controller.submit_tasks(TASKS))
        await fake.until(lambda: len(fake.unfinished) == 20)
        submit.cancel()
        await asyncio.wait([submit])
        fake.hold.set()
    # Closing has waited for it.
    assert fake.unfinished == []


@pytest.fixture
async def guarded(fake: FakeTasks, tmp_path: Path) -> AsyncIterator[str]:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("[]\n")
    async with serve([fake.service], SecurityConfig(tokens=tokens)) as address:
        yield address


async def test_a_wrong_token_is_told_at_once(guarded: str) -> None:
    with pytest.raises(Unauthenticated):
        await PARLController.connect(guarded)


async def test_what_is_no_scheduler_is_told_at_once() -> None:
    async with serve([]) as address:
        with pytest.raises(Unavailable, match=f"the server at {address} is not a scheduler"):
            await PARLController.connect(address)


async def test_a_bad_address_is_refused() -> None:
    with pytest.raises(FleetError, match="address must be host:port"):
        await PARLController.connect("nowhere")


async def test_refused_and_accepted_are_told_apart_when_requests_are_halved(
    controller: PARLController, fake: FakeTasks
) -> None:
    fake.refuse = lambda spec: InvalidInput("no") if int(spec.task_id.rsplit("-", 1)[1]) % 3 == 0 else None
    outcomes = await controller.execute_parallel(TASKS)
    states = [outcome.state for outcome in outcomes]
    assert states.count(OutcomeState.REFUSED) == 6
    assert len(fake.specs) == 14
    assert all((outcome.task_id in fake.specs) is outcome.ok for outcome in outcomes)


async def test_the_accepted_half_of_a_request_is_searched_after_a_break_though_the_other_half_waits(
    controller: PARLController, fake: FakeTasks
) -> None:
    def refuse(spec: task_pb2.TaskSpec) -> FleetError | None:
        if len(fake.requests) == 1:
            return InvalidInput("halve it")
        full = int(spec.task_id.rsplit("-", 1)[1]) > 10
        return ResourceExhausted("full", retry_after_seconds=0.01) if full else None

    received: list[int] = []
    half = asyncio.Event()

    async def run() -> None:
        async for outcome in controller.as_completed(TASKS):
            received.append(outcome.unwrap()["n"])
            if len(received) == 10:
                half.set()

    fake.refuse, fake.run = refuse, lambda spec: None
    call = asyncio.ensure_future(run())
    await fake.until(lambda: len(fake.unfinished) == 10)
    await fake.end_watches()
    await end_all(fake)
    async with asyncio.timeout(60):
        await half.wait()
    fake.refuse, fake.run = lambda spec: None, succeeded
    await call
    assert sorted(received) == list(range(20))
