import asyncio
import json
from collections.abc import Coroutine, Iterator
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parlmesh.client import ActorState, ClientConfig, OutcomeState, PARLController, PARLMetrics, Priority, TaskRequest
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, FleetError, InvalidInput, NotFound, Unavailable
from parlmesh.function_tasks import task
from parlmesh.testing import free_port, serve
from parlmesh.testing.fleet import FakeLearner
from parlmesh.testing.tasks import FakeTasks, failed, succeeded
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from tests.parlmesh.client.conftest import QUICK

ECHOES = [TaskRequest("echo", {"n": n}) for n in range(50)]


async def test_a_submitted_task_has_an_id_and_an_outcome(controller: PARLController, fake: FakeTasks) -> None:
    task_id = await controller.submit_task("echo", {"n": 1}, {"x": np.arange(3)}, priority=Priority.HIGH)
    outcome = await controller.result(task_id)
    assert outcome.unwrap() == {"n": 1}
    assert outcome.tensors["x"].tolist() == [0, 1, 2]
    assert fake.specs[task_id].priority == task_pb2.PRIORITY_HIGH
    assert fake.specs[task_id].submitter == "me"


async def test_ids_differ_also_between_controllers_of_one_submitter(fake: FakeTasks) -> None:
    config = ClientConfig(submitter="me")
    async with (
        serve([fake.service]) as address,
        PARLController(address, config=config) as one,
        PARLController(address, config=config) as other,
    ):
        ids = [await controller.submit_task("noop") for controller in (one, other) for _ in range(3)]
        assert len(set(ids)) == 6
        for task_id in ids[:3]:
            assert (await one.result(task_id)).ok


async def test_a_result_can_be_asked_for_again_and_from_elsewhere(fake: FakeTasks) -> None:
    async with serve([fake.service]) as address, PARLController(address) as one, PARLController(address) as other:
        task_id = await one.submit_task("echo", {"n": 1})
        for controller in (one, one, other):
            assert (await controller.result(task_id)).unwrap() == {"n": 1}


async def test_the_result_of_an_unknown_id_is_not_found(controller: PARLController) -> None:
    with pytest.raises(NotFound, match='there is no task "nothing"'):
        await controller.result("nothing")


async def test_a_result_that_does_not_come_is_a_deadline_and_the_task_goes_on(
    controller: PARLController, fake: FakeTasks
) -> None:
    fake.run = lambda spec: None
    task_id = await controller.submit_task("noop")
    with pytest.raises(DeadlineExceeded, match=r"has no outcome after 0\.01 s"):
        await controller.result(task_id, timeout=0.01)
    assert fake.cancelled == []
    await fake.finish(succeeded(fake.specs[task_id], {"late": True}))
    assert (await controller.result(task_id)).unwrap() == {"late": True}


async def test_many_tasks_are_submitted_all_or_none(controller: PARLController, fake: FakeTasks) -> None:
    fake.refuse = lambda spec: FailedPrecondition("no such kind") if spec.kind == "bad" else None
    with pytest.raises(FailedPrecondition, match="no such kind"):
        await controller.submit_tasks([TaskRequest("noop"), TaskRequest("bad")])
    assert fake.specs == {}
    assert await controller.submit_tasks([]) == []
    ids = await controller.submit_tasks(ECHOES)
    assert [(await controller.result(task_id)).unwrap()["n"] for task_id in ids] == list(range(50))
    statistics = (await controller.get_statistics()).client
    assert (statistics.pending_tasks, statistics.submitted_tasks, statistics.refused_tasks) == (0, 50, 2)


async def test_bad_input_is_refused_before_anything_is_sent(controller: PARLController, fake: FakeTasks) -> None:
    with pytest.raises(InvalidInput, match="queue_timeout is -1"):
        await controller.submit_task("noop", queue_timeout=-1)
    with pytest.raises(InvalidInput, match=r"10001 tasks are given at once; the limit is 10000"):
        await controller.submit_tasks([TaskRequest("noop")] * 10_001)
    with pytest.raises(InvalidInput, match=r"the task has \d+ bytes; a request holds at most"):
        await controller.submit_task("noop", {}, {"x": np.zeros(10 << 20, np.uint8)})
    with pytest.raises(InvalidInput, match="a task must be a TaskRequest, got 'noop'"):
        await controller.submit_tasks(["noop"])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="limit is 0; it must be 1 to 1000000"):
        await controller.execute_parallel([TaskRequest("noop")], limit=0)
    with pytest.raises(InvalidInput, match="timeout is 0 s"):
        controller.as_completed([], timeout=0)
    with pytest.raises(InvalidInput, match="task_ids is the text 'abc'"):
        await controller.cancel("abc")
    assert fake.requests == []


async def test_outcomes_come_in_input_order_whatever_the_order_of_the_ends(
    controller: PARLController, fake: FakeTasks
) -> None:
    fake.run = lambda spec: None

    async def backwards() -> None:
        await fake.until(lambda: len(fake.unfinished) == 50)
        for task_id in reversed(fake.unfinished):
            await fake.finish(succeeded(fake.specs[task_id]))

    async with asyncio.TaskGroup() as group:
        group.create_task(backwards())
        outcomes = await controller.execute_parallel(ECHOES)
    assert [outcome.unwrap()["n"] for outcome in outcomes] == list(range(50))
    assert [outcome.index for outcome in outcomes] == list(range(50))


async def test_no_tasks_give_no_outcomes(controller: PARLController, fake: FakeTasks) -> None:
    assert await controller.execute_parallel([]) == []
    assert [outcome async for outcome in controller.as_completed([])] == []
    assert [outcome async for outcome in controller.map("echo", [])] == []
    assert fake.requests == []


async def test_a_failure_a_refusal_and_bad_input_leave_the_others_intact(
    controller: PARLController, fake: FakeTasks
) -> None:
    fake.run = lambda spec: failed(spec, "HANDLER_ERROR", "boom") if spec.kind == "fail" else succeeded(spec)
    fake.refuse = lambda spec: FailedPrecondition("unknown kind") if spec.kind == "bad" else None
    tasks: list[TaskRequest] = list(ECHOES)
    tasks[7] = TaskRequest("fail")
    tasks[20] = TaskRequest("bad")
    tasks[33] = TaskRequest("bad")
    tasks[41] = TaskRequest("echo", run_timeout=-1)
    tasks[42] = "echo"  # type: ignore[call-overload]
    outcomes = await controller.execute_parallel(tasks)
    errors = {outcome.index: (outcome.state, str(outcome.error)) for outcome in outcomes if not outcome.ok}
    assert errors == {
        7: (OutcomeState.FAILED, "boom"),
        20: (OutcomeState.REFUSED, "unknown kind"),
        33: (OutcomeState.REFUSED, "unknown kind"),
        41: (OutcomeState.REFUSED, "run_timeout is -1 s; it must be 0.001 s to 3.1536e+09 s"),
        42: (OutcomeState.REFUSED, "a task must be a TaskRequest, got 'echo'"),
    }
    good = [outcome for outcome in outcomes if outcome.ok]
    assert [outcome.unwrap()["n"] for outcome in good] == [outcome.index for outcome in good]
    assert len(good) == 45


async def test_never_more_than_the_limit_are_in_flight(controller: PARLController, fake: FakeTasks) -> None:
    outcomes = await controller.execute_parallel(ECHOES, limit=7)
    assert all(outcome.ok for outcome in outcomes)
    assert fake.most_unfinished <= 7
    assert sum(map(len, fake.requests)) == 50


async def test_at_the_deadline_what_has_no_outcome_is_an_error_and_is_cancelled(
    controller: PARLController, fake: FakeTasks
) -> None:
    fake.run = lambda spec: None if spec.kind == "hang" else succeeded(spec)
    tasks = [TaskRequest("noop"), TaskRequest("hang"), TaskRequest("hang"), TaskRequest("noop")]
    outcomes = await controller.execute_parallel(tasks, limit=2, timeout=1.5)
    assert [outcome.state for outcome in outcomes] == [
        OutcomeState.SUCCEEDED,
        OutcomeState.ABANDONED,
        OutcomeState.ABANDONED,
        OutcomeState.ABANDONED,
    ]
    assert all(isinstance(outcome.error, DeadlineExceeded) for outcome in outcomes[1:])
    assert "was not even submitted within 1.5 s" in str(outcomes[3].error)
    await fake.until(lambda: len(fake.cancelled) == 2)
    assert sorted(fake.cancelled) == sorted(outcome.task_id for outcome in outcomes[1:3])


async def test_a_cancelled_call_cancels_its_tasks(controller: PARLController, fake: FakeTasks) -> None:
    fake.run = lambda spec: None
    call = asyncio.ensure_future(controller.execute_parallel(ECHOES))
    await fake.until(lambda: len(fake.unfinished) == 50)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await fake.until(lambda: len(fake.cancelled) == 50)


async def test_outcomes_can_be_taken_as_they_complete(controller: PARLController, fake: FakeTasks) -> None:
    fake.run = lambda spec: None
    seen = []
    async with aclosing(controller.as_completed(ECHOES[:3])) as outcomes:
        for wanted in (2, 0, 1):
            taking = asyncio.ensure_future(anext(outcomes))
            await fake.until(lambda: len(fake.specs) == 3)
            await fake.finish(succeeded(list(fake.specs.values())[wanted]))
            seen.append((await taking).index)
        with pytest.raises(StopAsyncIteration):
            await anext(outcomes)
    assert seen == [2, 0, 1]


async def test_leaving_as_completed_early_cancels_the_rest(controller: PARLController, fake: FakeTasks) -> None:
    fake.run = lambda spec: succeeded(spec) if spec.task_id.endswith("-1") else None

    def endless() -> Iterator[TaskRequest]:
        while True:
            yield TaskRequest("noop")

    async with aclosing(controller.as_completed(endless(), limit=10)) as outcomes:
        assert (await anext(outcomes)).index == 0
    await fake.until(lambda: not fake.unfinished)
    assert 9 <= len(fake.cancelled) <= 10


async def test_as_completed_ends_with_an_error_at_the_deadline(controller: PARLController, fake: FakeTasks) -> None:
    fake.run = lambda spec: None
    with pytest.raises(DeadlineExceeded, match=r"3 tasks had no outcome within 0\.05 s and were cancelled"):
        await anext(controller.as_completed(ECHOES[:3], timeout=0.05))


async def test_map_keeps_the_order_and_reads_no_further_than_the_limit(
    controller: PARLController, fake: FakeTasks
) -> None:
    fake.run = lambda spec: None
    read = 0

    def parameters() -> Iterator[dict[str, int]]:
        nonlocal read
        for number in range(100):
            read = number + 1
            yield {"n": number}

    async def end_all_but_the_first() -> None:
        await fake.until(lambda: len(fake.unfinished) == 10)
        first, *others = fake.unfinished
        for task_id in others:
            await fake.finish(succeeded(fake.specs[task_id]))
        assert read == 10
        fake.run = succeeded
        await fake.finish(succeeded(fake.specs[first]))

    async with asyncio.TaskGroup() as group:
        group.create_task(end_all_but_the_first())
        values = [outcome.unwrap()["n"] async for outcome in controller.map("echo", parameters(), limit=10)]
    assert values == list(range(100))


async def test_children_are_never_submitted_before_their_parents(controller: PARLController, fake: FakeTasks) -> None:
    def known_parents(spec: task_pb2.TaskSpec) -> FleetError | None:
        missing = [name for name in spec.dependencies if name not in fake.specs and name not in fake.requests[-1]]
        return FailedPrecondition(f"unknown parent {missing}") if missing else None

    fake.refuse = known_parents
    chain = [TaskRequest("noop", task_id=f"c{n}", dependencies=[f"c{n + 1}"]) for n in range(20)]
    outcomes = await controller.execute_parallel([*chain, TaskRequest("noop", task_id="c20")], limit=3)
    assert [outcome.ok for outcome in outcomes] == [True] * 21


async def test_an_id_given_twice_in_one_call_is_refused_once(controller: PARLController) -> None:
    outcomes = await controller.execute_parallel([TaskRequest("noop", task_id="a")] * 2)
    assert [outcome.state for outcome in outcomes] == [OutcomeState.SUCCEEDED, OutcomeState.REFUSED]
    assert str(outcomes[1].error) == 'task id "a" is given twice in one call'


async def test_an_id_that_has_ended_before_gives_its_outcome_again(controller: PARLController, fake: FakeTasks) -> None:
    first = await controller.execute_parallel([TaskRequest("echo", {"n": 1}, task_id="a")])
    again = await controller.execute_parallel([TaskRequest("echo", {"n": 2}, task_id="a"), TaskRequest("noop")])
    assert first[0].unwrap() == again[0].unwrap() == {"n": 1}
    assert again[1].ok
    assert await controller.submit_task("echo", {"n": 3}, task_id="a") == "a"
    assert (await controller.result("a")).unwrap() == {"n": 1}


async def test_cancelled_tasks_end_cancelled(controller: PARLController, fake: FakeTasks) -> None:
    fake.run = lambda spec: None if spec.kind == "hang" else succeeded(spec)
    hanging, done = await controller.submit_tasks([TaskRequest("hang"), TaskRequest("noop")])
    await controller.result(done)
    assert await controller.cancel([hanging, done]) == [hanging]
    assert (await controller.result(hanging)).state is OutcomeState.CANCELLED


async def test_statistics_have_every_field_of_the_answer(controller: PARLController, fake: FakeTasks) -> None:
    fields = pb.GetStatisticsResponse.DESCRIPTOR.fields
    answer: dict[str, Any] = {field.name: number for number, field in enumerate(fields, 1)}
    answer["queued_by_priority"] = {"high": 7}
    fake.statistics = pb.GetStatisticsResponse(**answer)
    statistics = await controller.get_statistics()
    assert isinstance(statistics, PARLMetrics)
    got = asdict(statistics)
    assert got.pop("client")["reconnects"] == 0
    assert got == answer


async def test_actors_are_listed_and_commanded(controller: PARLController, fake: FakeTasks) -> None:
    fake.actors = [
        pb.Actor(actor_id="a", node_id="n", state=pb.ACTOR_STATE_PAUSED, slots=2, kinds=["noop"], labels={"gpu": "1"}),
        pb.Actor(actor_id="b", state=pb.ActorState.ValueType(99), policy_version=4),
    ]
    first, second = await controller.list_actors()
    assert (first.actor_id, first.node_id, first.state, first.slots) == ("a", "n", ActorState.PAUSED, 2)
    assert (first.kinds, first.labels, second.state, second.policy_version) == (
        ("noop",),
        {"gpu": "1"},
        ActorState.LOST,
        4,
    )
    for command in (controller.pause, controller.resume, controller.drain, controller.reset):
        assert [actor.actor_id for actor in await command(["a"])] == ["a"]
    sent = [pb.ActorCommand.Name(request.command) for request in fake.commands]
    assert sent == [f"ACTOR_COMMAND_{name}" for name in ("PAUSE", "RESUME", "DRAIN", "RESET")]


async def test_the_rest_of_the_contract_is_reachable(
    controller: PARLController, fake: FakeTasks, tmp_path: Path
) -> None:
    fake.run = lambda spec: None
    task_id = await controller.submit_task("noop")
    assert await controller.explain(task_id) == f'task "{task_id}" is True'
    assert await controller.rebalance_load() == 1
    trace = await controller.save_trace(tmp_path / "trace.json", seconds=5)
    assert json.loads(trace.read_text()) == {"traceEvents": [], "seconds": 5}
    with pytest.raises(InvalidInput, match="seconds is 0; it must be 1 to 3600"):
        await controller.save_trace(tmp_path / "none.json", seconds=0)


async def test_update_policy_waits_for_the_actors_that_act_with_an_older_version(fake: FakeTasks) -> None:
    learner = FakeLearner()
    await learner.publish("run", 3, b"weights")
    ready = pb.ACTOR_STATE_READY
    old = pb.Actor(actor_id="old", state=ready, policy_version=2)
    fake.actors = [
        old,
        pb.Actor(actor_id="new", state=ready, policy_version=4),
        pb.Actor(actor_id="never", state=ready),
        pb.Actor(actor_id="lost", state=pb.ACTOR_STATE_LOST, policy_version=1),
    ]
    async with (
        serve([fake.service]) as address,
        serve(learner.services) as learner_address,
        PARLController(address, learner=learner_address) as controller,
    ):
        with pytest.raises(DeadlineExceeded, match=r"1 actors act with an older policy after 1 s, e\.g\. old"):
            await controller.update_policy("run", timeout=1)
        old.policy_version = 3
        update = await controller.update_policy("run")
        assert (update.run_id, update.version, update.actors) == ("run", 3, 2)
        assert update.seconds > 0


async def test_update_policy_without_a_learner_says_what_is_missing(controller: PARLController) -> None:
    with pytest.raises(FailedPrecondition, match="update_policy needs a learner"):
        await controller.update_policy()


async def test_nothing_works_before_there_is_a_fleet_or_after_the_end(fake: FakeTasks) -> None:
    with pytest.raises(FailedPrecondition, match="there is no fleet yet"):
        await PARLController().submit_task("noop")
    async with serve([fake.service]) as address:
        controller = await PARLController.connect(address)
        await controller.close()
        await controller.close()
        with pytest.raises(Unavailable, match="the controller was closed"):
            await controller.submit_task("noop")


@pytest.mark.parametrize("given", ["3", float("nan"), True, [3]])
async def test_a_timeout_that_is_no_number_is_refused_by_name(controller: PARLController, given: Any) -> None:
    task_id = await controller.submit_task("noop")
    calls = (
        lambda: controller.result(task_id, given),
        lambda: controller.execute_parallel(ECHOES, timeout=given),
        lambda: anext(controller.map("noop", [{}], timeout=given)),
        lambda: anext(controller.as_completed(ECHOES, timeout=given)),
    )
    for call in calls:
        with pytest.raises(InvalidInput, match="it must be a number of seconds"):
            await call()
    assert (await controller.result(task_id, float(np.float32(30)))).ok
    assert (await controller.execute_parallel(ECHOES, timeout=float("inf")))[0].ok


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tensors": [1]}, r"tensors is \[1\]; it must be a mapping of names to arrays"),
        ({"task_id": 3}, "task_id is 3; it must be text"),
        ({"dependencies": [3]}, "dependencies has 3; every id must be text"),
    ],
)
async def test_a_request_with_a_part_of_another_type_is_refused_and_no_other(
    controller: PARLController, given: Any, sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        await controller.submit_task("echo", {"n": 1}, **given)
    good, bad = await controller.execute_parallel([TaskRequest("noop"), TaskRequest("echo", {"n": 1}, **given)])
    assert (good.ok, bad.state) == (True, OutcomeState.REFUSED)


async def test_ids_that_are_not_text_are_refused_by_name(controller: PARLController) -> None:
    with pytest.raises(InvalidInput, match="task_ids has 3; every id must be text"):
        await controller.cancel(["one", 3])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (
            np.ma.array([1.0, 2.0], mask=[False, True]),
            "the array is a MaskedArray, which would arrive as a plain array",
        ),
        (np.zeros(2, np.complex64), "the array has dtype complex64; allowed are"),
        (np.zeros(2, np.uint32), "the array has dtype uint32; allowed are"),
    ],
)
async def test_an_array_that_no_task_could_take_is_not_put(
    controller: PARLController, array: Any, sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        await controller.put(array)


async def test_a_call_from_another_event_loop_is_refused_at_once(controller: PARLController, fake: FakeTasks) -> None:
    def elsewhere(coroutine: Coroutine[Any, Any, Any]) -> object:
        return asyncio.run(coroutine)

    for call in (controller.submit_task("noop"), controller.initialize(2), controller.close()):
        with pytest.raises(FailedPrecondition, match=r"the event loop that opened this controller is another one"):
            await asyncio.to_thread(elsewhere, call)
    assert (await controller.result(await controller.submit_task("noop"))).ok


async def test_a_controller_whose_event_loop_has_ended_says_so(fake: FakeTasks) -> None:
    async with serve([fake.service]) as address:
        controller = await asyncio.to_thread(lambda: asyncio.run(PARLController.connect(address, config=QUICK)))
        with pytest.raises(FailedPrecondition, match=r"has ended; use it within one asyncio.run") as error:
            await controller.submit_task("noop")
        assert error.value.reason == "OTHER_EVENT_LOOP"
        await controller.close()


async def test_calls_that_closing_cuts_off_say_so_and_are_not_cancelled(fake: FakeTasks) -> None:
    fake.run = lambda spec: None
    fake.hold = asyncio.Event()
    async with serve([fake.service]) as address, PARLController(address) as controller:
        calls: list[asyncio.Task[Any]] = [
            asyncio.create_task(controller.submit_task("noop", task_id="one")),
            asyncio.create_task(controller.submit_task("noop", task_id="two")),
        ]
        await fake.until(lambda: {"one", "two"} <= fake.specs.keys())
        async with PARLController(address) as other:
            calls.append(asyncio.create_task(other.result("one", timeout=60)))
            await fake.until(lambda: any(request.task_ids for request in fake._watches.values()))
        calls[1].cancel()
        await controller.close()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        fake.hold.set()
    assert [type(end) for end in ends] == [Unavailable, asyncio.CancelledError, Unavailable]
    assert {str(ends[0]), str(ends[2])} == {"the controller was closed"}


async def test_closing_ends_every_wait(fake: FakeTasks) -> None:
    fake.run = lambda spec: None
    async with serve([fake.service]) as address, asyncio.TaskGroup() as group:
        controller = await PARLController.connect(address)
        task_id = await controller.submit_task("noop")
        running = group.create_task(controller.execute_parallel(ECHOES))
        waiting = group.create_task(controller.result(task_id))
        await fake.until(lambda: len(fake.unfinished) == 51)
        await controller.close()
    outcomes = [*running.result(), waiting.result()]
    assert {outcome.state for outcome in outcomes} == {OutcomeState.ABANDONED}
    assert {str(outcome.error) for outcome in outcomes} == {"the controller was closed"}


async def test_an_address_where_nobody_answers_is_unavailable_by_the_deadline() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match=f"the scheduler at {address} gave no answer within 0.3 s"):
        await PARLController.connect(address, config=ClientConfig(connect_seconds=0.3))


@pytest.mark.parametrize("number", [0, -1, 10_001, 2.5, "many"])
async def test_a_number_of_workers_out_of_range_is_refused(number: int) -> None:
    with pytest.raises(InvalidInput, match=f"num_workers is .*{number}.*; it must be 1 to 10000"):
        await PARLController().initialize(number)


async def test_a_function_that_is_no_task_is_refused_by_its_name(controller: PARLController) -> None:
    def double(x: int) -> int:
        return 2 * x

    given: Any = double
    for call in (lambda: controller.submit(given, 1), lambda: controller.map(given, [1])):
        with pytest.raises(InvalidInput, match=r"double is not a task; decorate it with @parlmesh.task"):
            call()
    kind: Any = "echo"
    with pytest.raises(InvalidInput, match=r"'echo' is not a task; decorate a function with @parlmesh.task"):
        controller.submit(kind, 1)


@task(kind="test-controller.doubled")
def doubled(x: int) -> int:
    return 2 * x


async def test_a_function_s_options_are_those_of_its_tasks(fake: FakeTasks, controller: PARLController) -> None:
    urgent = doubled.options(priority=Priority.HIGH, queue_timeout=5.0).options(
        run_timeout=2.5, max_attempts=1, node_id="edge-1", labels={"zone": "a"}
    )
    await controller.submit(urgent, 1)
    assert [value async for value in controller.map(urgent, [1])] == [None]
    await controller.submit(doubled, 1)
    first, second, plain = fake.specs.values()
    for spec in (first, second):
        assert spec.priority == task_pb2.PRIORITY_HIGH
        assert (spec.queue_timeout.seconds, spec.run_timeout.nanos, spec.max_attempts) == (5, 500_000_000, 1)
        assert (spec.placement.node_id, dict(spec.placement.labels)) == ("edge-1", {"zone": "a"})
    assert (plain.priority, plain.max_attempts) == (task_pb2.PRIORITY_NORMAL, 0)
    assert not plain.HasField("queue_timeout")


async def test_options_that_are_none_are_refused_by_name(controller: PARLController) -> None:
    given: Any = doubled
    with pytest.raises(InvalidInput, match=r"has no option deadline; there are priority, queue_timeout, run_timeout"):
        given.options(deadline=3)
    with pytest.raises(InvalidInput, match=r"priority is 9; it goes from 1 \(BACKGROUND\) to 5"):
        await controller.submit(doubled.options(priority=9), 1)
    with pytest.raises(InvalidInput, match="queue_timeout"):
        await controller.submit(doubled.options(queue_timeout=-1.0), 1)
