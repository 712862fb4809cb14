"""Statistics equal an independent count; lists and traces are complete."""

import json
from collections.abc import Iterator

import pytest
from google.protobuf.duration_pb2 import Duration

from parlmesh.errors import InvalidInput
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from scheduler.core import chrome_trace
from scheduler.core.actors.placement import ActorCommand
from scheduler.core.core import Core
from scheduler.core.task import Placement, Task, TaskState
from scheduler.simulation.journal_replay import take_over
from scheduler.wire import hot_messages, queries
from tests.scheduler.conftest import Harness, ids


def scripted(harness: Harness) -> None:
    """3 succeed, 1 fails, 1 is retried and succeeds, 1 is cancelled and late, 1 runs, 2 queue, 1 waits."""
    actor = harness.connect("a")
    for number in range(3):
        harness.submit(Task(f"good {number}", "noop"))
        harness.now += 2.0
        harness.finish(actor, ran=2.0)
    harness.submit(Task("bad", "noop"))
    harness.fail(actor, harness.take(actor)[0], retryable=False)
    harness.submit(Task("again", "noop"))
    harness.fail(actor, harness.take(actor)[0])
    harness.pass_time(0.5, step=0.1)
    harness.finish(actor)
    harness.submit(Task("cancelled", "noop"))
    (task,) = harness.take(actor)
    lease = task.lease
    harness.cancel("cancelled")
    harness.report(actor, results=[(lease.task_id, lease.lease_id, b"", None, 0.1)], credits=1)
    harness.submit(Task("running", "noop"), Task("queued 1", "noop"), Task("queued 2", "noop"))
    harness.submit(Task("waiting", "noop", dependencies=("running",)))


def test_statistics_equal_an_independent_count(harness: Harness) -> None:
    scripted(harness)
    found = queries.statistics(harness.core, harness.now)
    assert (found.completed_tasks, found.failed_tasks, found.cancelled_tasks) == (4, 1, 1)
    assert (found.running_tasks, found.queued_tasks, found.waiting_tasks) == (1, 2, 1)
    assert (found.retried_tasks, found.stale_results) == (1, 1)
    assert (found.active_workers, found.ready_workers, found.worker_utilization) == (1, 1, 1.0)
    seconds = harness.now - 1000.0
    assert found.throughput_tps == pytest.approx(6 / seconds)
    assert found.avg_task_latency_ms == pytest.approx(1000 * (3 * 2.0 + 0.5) / 6, rel=0.05)


def test_rates_are_those_of_the_last_minute(harness: Harness) -> None:
    scripted(harness)
    harness.pass_time(120, alive=[1])
    found = queries.statistics(harness.core, harness.now)
    assert (found.throughput_tps, found.avg_task_latency_ms, found.completed_tasks) == (0.0, 0.0, 4)


def test_a_paused_actor_is_no_ready_worker(harness: Harness) -> None:
    harness.connect("a")
    harness.connect("b")
    harness.command(ActorCommand.PAUSE, "a")
    assert queries.statistics(harness.core, harness.now).ready_workers == 1


def test_the_time_a_policy_takes_to_reach_every_actor_is_measured(harness: Harness) -> None:
    first, second = harness.connect("a"), harness.connect("b")
    harness.report(first, heartbeat=(), policy_version=1)
    harness.report(second, heartbeat=(), policy_version=1)
    harness.pass_time(0.1)
    harness.report(first, heartbeat=(), policy_version=2)
    harness.pass_time(1.0, alive=[first, second])
    harness.report(second, heartbeat=(), policy_version=2)
    harness.pass_time(0.1)
    assert queries.statistics(harness.core, harness.now).policy_update_time_ms == pytest.approx(1100, abs=20)
    (shown, _) = queries.list_actors(harness.core, pb.ListActorsRequest(), harness.now).actors
    assert shown.policy_version == 2


def test_a_new_run_that_counts_from_one_again_is_measured_too(harness: Harness) -> None:
    first, second = harness.connect("a"), harness.connect("b")
    for actor in (first, second):
        harness.report(actor, heartbeat=(), policy_version=500)
    harness.pass_time(0.1)
    harness.report(first, heartbeat=(), policy_version=1)
    harness.pass_time(2.0, alive=[first, second])
    harness.report(second, heartbeat=(), policy_version=1)
    harness.pass_time(0.1)
    assert queries.statistics(harness.core, harness.now).policy_update_time_ms == pytest.approx(2100, abs=20)


def test_a_restarted_actor_uses_no_policy_until_it_says_so_and_holds_no_measurement_up(harness: Harness) -> None:
    first, second = harness.connect("a"), harness.connect("b")
    for actor in (first, second):
        harness.report(actor, heartbeat=(), policy_version=1)
    harness.pass_time(0.1)
    again = harness.connect("b", incarnation=2)
    _, shown = queries.list_actors(harness.core, pb.ListActorsRequest(), harness.now).actors
    assert shown.policy_version == 0
    harness.report(first, heartbeat=(), policy_version=2)
    harness.pass_time(1.0, alive=[first, again])
    assert queries.statistics(harness.core, harness.now).policy_update_time_ms == pytest.approx(500, abs=20)


def test_a_new_run_whose_actors_have_all_restarted_is_measured_too(harness: Harness) -> None:
    for name in ("a", "b"):
        harness.report(harness.connect(name), heartbeat=(), policy_version=500)
    harness.pass_time(0.1)
    first, second = harness.connect("a", incarnation=2), harness.connect("b", incarnation=2)
    harness.report(first, heartbeat=(), policy_version=1)
    harness.report(second, heartbeat=(), policy_version=1)
    harness.pass_time(0.1)
    harness.report(first, heartbeat=(), policy_version=2)
    harness.pass_time(2.0, alive=[first, second])
    harness.report(second, heartbeat=(), policy_version=2)
    harness.pass_time(0.1)
    assert queries.statistics(harness.core, harness.now).policy_update_time_ms == pytest.approx(2100, abs=20)


def test_pages_show_every_task_once_and_the_newest_first(harness: Harness) -> None:
    harness.submit(*[Task(str(number), "noop" if number % 2 else "echo") for number in range(25)])
    seen: list[str] = []
    token = ""
    while True:
        page = queries.list_tasks(harness.core, pb.ListTasksRequest(page_size=10, page_token=token))
        seen += [task.spec.task_id for task in page.tasks]
        token = page.next_page_token
        if not token:
            break
    assert seen == [str(number) for number in reversed(range(25))]


def test_lists_can_be_narrowed_by_state_and_kind(harness: Harness) -> None:
    scripted(harness)
    queued = queries.list_tasks(harness.core, pb.ListTasksRequest(states=[task_pb2.TASK_STATE_QUEUED]))
    assert [task.spec.task_id for task in queued.tasks] == ["queued 2", "queued 1"]
    assert not queries.list_tasks(harness.core, pb.ListTasksRequest(kind="shogi")).tasks


@pytest.mark.parametrize(("size", "token"), [(1001, ""), (0, "abc"), (0, "-1")])
def test_an_impossible_page_is_refused(harness: Harness, size: int, token: str) -> None:
    with pytest.raises(InvalidInput, match=r"page_size|page_token"):
        queries.list_tasks(harness.core, pb.ListTasksRequest(page_size=size, page_token=token))


def test_actors_are_listed_by_state(harness: Harness) -> None:
    harness.connect("b", slots=3, labels=(("zone", "1"),))
    harness.disconnect(harness.connect("a"))
    everyone = queries.list_actors(harness.core, pb.ListActorsRequest(), harness.now).actors
    assert [actor.actor_id for actor in everyone] == ["a", "b"]
    (ready,) = queries.list_actors(
        harness.core, pb.ListActorsRequest(states=[pb.ACTOR_STATE_READY]), harness.now
    ).actors
    assert (ready.actor_id, ready.slots, dict(ready.labels), list(ready.kinds)) == ("b", 3, {"zone": "1"}, ["noop"])


def test_a_long_list_of_actors_leaves_others_their_turn(harness: Harness) -> None:
    for number in range(3 * queries.ACTORS_A_TURN):
        harness.connect(f"actor-{number:03}")
    *turns, answer = queries.listing_actors(harness.core, pb.ListActorsRequest(), harness.now)
    assert turns == [None] * 3
    assert answer == queries.list_actors(harness.core, pb.ListActorsRequest(), harness.now)
    assert len(answer.actors) == 3 * queries.ACTORS_A_TURN


def test_the_trace_has_one_event_per_attempt_on_the_row_of_a_slot(harness: Harness) -> None:
    actor = harness.connect("a", slots=2)
    harness.submit(Task("1", "noop"), Task("2", "noop"))
    first, second = harness.take(actor)
    harness.now += 3.0
    harness.fail(actor, first)
    harness.now += 1.0
    harness.finish(actor, second, ran=4.0)
    harness.pass_time(0.2, step=0.1, alive=[actor])
    harness.finish(actor, first, ran=0.1)
    found = json.loads(chrome_trace.to_json(queries.attempts(harness.core, pb.GetTraceRequest(), harness.now), 0.0))
    names = [event["args"]["name"] for event in found["traceEvents"] if event["ph"] == "M"]
    events = {(e["args"]["task_id"], e["args"]["attempt"]): e for e in found["traceEvents"] if e["ph"] == "X"}
    assert names == ["a"]
    assert {key: event["args"]["state"] for key, event in events.items()} == {
        ("1", 1): "RETRIED",
        ("1", 2): "SUCCEEDED",
        ("2", 1): "SUCCEEDED",
    }
    assert events["2", 1]["dur"] == 4_000_000
    assert events["1", 1]["tid"] != events["2", 1]["tid"]
    assert {event["tid"] for event in events.values()} == {1, 2}


def test_the_trace_shows_only_the_window(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(Task("old", "noop"))
    harness.finish(actor)
    harness.pass_time(100, alive=[actor])
    harness.submit(Task("new", "noop"))
    harness.finish(actor)
    assert [
        attempt.task_id for attempt in queries.attempts(harness.core, pb.GetTraceRequest(seconds=50), harness.now)
    ] == ["new"]
    with pytest.raises(InvalidInput, match="3600"):
        queries.attempts(harness.core, pb.GetTraceRequest(seconds=3601), harness.now)


def test_a_trace_has_the_newest_attempts_whether_last_or_retried(harness: Harness) -> None:
    actor = harness.connect("a", slots=10)

    def run(*names: str) -> None:
        harness.submit(*[Task(name, "noop") for name in names])
        for task in harness.take(actor):
            harness.now += 0.001
            if task.task_id.startswith("retried"):
                harness.fail(actor, task)
            else:
                harness.finish(actor, task)

    run("retried 1", "done 1", "retried 2", "done 2", "done 3", "retried 3")
    found = queries.attempts(harness.core, pb.GetTraceRequest(max_attempts=3), harness.now)
    assert sorted(attempt.task_id for attempt in found) == ["done 2", "done 3", "retried 3"]


def test_the_trace_shows_an_attempt_that_was_lost_with_its_actor(harness: Harness) -> None:
    first = harness.connect("a")
    harness.submit(Task("t", "noop"))
    harness.fail(first, harness.take(first)[0])
    harness.pass_time(0.5, step=0.1, alive=[first])
    (task,) = harness.take(first)
    began = task.lease_time
    harness.now += 2.0
    again = harness.connect("a", incarnation=2)
    harness.finish(again)
    found = queries.attempts(harness.core, pb.GetTraceRequest(), harness.now)
    assert [(each.number, each.state, each.ran) for each in found] == [
        (1, "RETRIED", 0.01),
        (2, "LOST", 0.0),
        (3, "SUCCEEDED", 0.01),
    ]
    assert (found[1].actor_id, found[1].end - found[1].start) == ("a", harness.now - began)


def test_a_lost_attempt_whose_actor_comes_back_for_it_is_not_shown_as_lost(harness: Harness) -> None:
    actor = harness.connect("a", slots=2)
    harness.submit(Task("reclaimed", "noop"), Task("late", "noop"))
    reclaimed, late = harness.take(actor)
    lease = reclaimed.lease
    harness.disconnect(actor)
    harness.pass_time(5.0)
    shown = {(each.task_id, each.state) for each in queries.attempts(harness.core, pb.GetTraceRequest(), harness.now)}
    assert shown == {("reclaimed", "LOST"), ("late", "LOST")}
    back = harness.connect("a", credits=0, slots=2, leases=[lease])
    harness.finish(back, late)
    harness.pass_time(0.5, alive=[back])
    found = queries.attempts(harness.core, pb.GetTraceRequest(), harness.now)
    assert [(each.task_id, each.state) for each in found] == [("late", "SUCCEEDED")]


def test_a_task_cancelled_between_two_attempts_has_each_attempt_once(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(Task("t", "noop"))
    harness.fail(actor, harness.take(actor)[0])
    harness.cancel("t")
    found = queries.attempts(harness.core, pb.GetTraceRequest(), harness.now)
    assert [(each.number, each.state) for each in found] == [(1, "RETRIED")]


def test_lost_and_retried_attempts_are_bounded_together() -> None:
    harness = Harness(retention={"trace_events": 2})
    actor = harness.connect("a", slots=3)
    harness.submit(*[Task(str(number), "noop") for number in range(3)])
    tasks = harness.take(actor)
    for task in tasks:
        harness.now += 0.001
        harness.fail(actor, task)
    found = queries.attempts(harness.core, pb.GetTraceRequest(), harness.now)
    assert sorted(each.task_id for each in found) == sorted(ids(tasks)[1:])


def test_a_trace_that_is_too_large_keeps_what_ended_last(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_trace, "MAX_BYTES", 1000)
    actor = harness.connect("a", slots=2)
    harness.submit(Task("long", "noop"))
    (long,) = harness.take(actor)
    for number in range(50):
        harness.submit(Task(str(number), "noop"))
        harness.now += 0.1
        harness.finish(actor)
    harness.now += 0.1
    harness.finish(actor, long, ran=5.0)
    text = chrome_trace.to_json(queries.attempts(harness.core, pb.GetTraceRequest(), harness.now), 0.0)
    assert "long" in [event["args"].get("task_id") for event in json.loads(text)["traceEvents"]]


def test_a_trace_that_is_too_large_keeps_the_newest(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_trace, "MAX_BYTES", 1000)
    actor = harness.connect("a")
    for number in range(50):
        harness.submit(Task(str(number), "noop"))
        harness.now += 0.1
        harness.finish(actor)
    text = chrome_trace.to_json(queries.attempts(harness.core, pb.GetTraceRequest(), harness.now), 0.0)
    assert len(text) <= 1100
    events = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
    assert 1 < len(events) < 50
    assert events[0]["args"]["task_id"] == "49"


def test_a_search_among_very_many_tasks_ends_its_page_early(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MAX_LOOKED_AT", 10)
    harness.submit(*[Task(str(number), "rare" if number == 3 else "noop") for number in range(25)])
    token, found, pages = "", [], 0
    while True:
        page = queries.list_tasks(harness.core, pb.ListTasksRequest(kind="rare", page_token=token))
        found += [task.spec.task_id for task in page.tasks]
        pages += 1
        token = page.next_page_token
        if not token:
            break
    assert (found, pages) == (["3"], 3)


def test_a_search_for_rare_states_stops_at_the_last_match(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = harness.connect("a")
    harness.submit(Task("bad", "noop"))
    harness.fail(actor, harness.take(actor)[0], retryable=False)
    harness.submit(*[Task(str(number), "noop") for number in range(50)])
    opened: list[Task] = []
    before = queries._before

    def counted(tasks: dict[str, Task], number: int | None) -> Iterator[Task]:
        for task in before(tasks, number):
            opened.append(task)
            yield task

    monkeypatch.setattr(queries, "_before", counted)

    def listed(*states: task_pb2.TaskState.ValueType) -> tuple[list[str], str, int]:
        opened.clear()
        page = queries.list_tasks(harness.core, pb.ListTasksRequest(states=states))
        return [task.spec.task_id for task in page.tasks], page.next_page_token, len(opened)

    # One more is taken to see that none is left.
    assert listed(task_pb2.TASK_STATE_CANCELLED) == ([], "", 1)
    assert listed(task_pb2.TASK_STATE_RUNNING) == (["0"], "", 51)
    assert listed(task_pb2.TASK_STATE_FAILED)[:2] == (["bad"], "")


def test_finished_tasks_are_listed_by_state_after_a_restart_and_after_a_takeover(harness: Harness) -> None:
    actor = harness.connect("a")
    for number in range(3):
        harness.submit(Task(f"bad {number}", "noop"))
        harness.fail(actor, harness.take(actor)[0], retryable=False)
        harness.submit(Task(f"good {number}", "noop"))
        harness.finish(actor)

    def restarted() -> Core:
        core = Core(harness.config, now=harness.now, wall_time=harness.now, lease_floor=2 << 32)
        core.recover(harness.journal, harness.now)
        return core

    def taken_over() -> Core:
        core = Core(harness.config, now=harness.now, wall_time=harness.now, lease_floor=2 << 32)
        led = take_over(core, harness.journal, harness.now)
        assert led is core
        return core

    failed = [task_pb2.TASK_STATE_FAILED]
    for core in (restarted(), taken_over()):
        listed = queries.list_tasks(core, pb.ListTasksRequest(states=failed))
        assert [task.spec.task_id for task in listed.tasks] == ["bad 2", "bad 1", "bad 0"]
        core.submit([Task("cancelled", "noop"), Task("queued", "noop")], harness.now)
        core.cancel(["cancelled"], harness.now)
        ended = queries.list_tasks(core, pb.ListTasksRequest(states=[task_pb2.TASK_STATE_CANCELLED, *failed]))
        assert [task.spec.task_id for task in ended.tasks] == ["cancelled", "bad 2", "bad 1", "bad 0"]


def test_a_search_for_a_final_state_stops_at_the_last_task_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(retention={"max_tasks": 1})
    harness.submit(*[Task(str(number), "echo") for number in range(50)])
    actor = harness.connect("a")
    harness.submit(*[Task(f"bad {number}", "noop") for number in range(5)])
    for _ in range(5):
        harness.fail(actor, harness.take(actor)[0], retryable=False)
    harness.pass_time(1.0, alive=[actor])
    looked_at: list[Task] = []
    before = queries._before

    def counted(tasks: dict[str, Task], number: int | None) -> Iterator[Task]:
        for task in before(tasks, number):
            looked_at.append(task)
            yield task

    monkeypatch.setattr(queries, "_before", counted)
    found = queries.list_tasks(harness.core, pb.ListTasksRequest(states=[task_pb2.TASK_STATE_FAILED]))
    assert [task.spec.task_id for task in found.tasks] == ["bad 4"]
    assert len(looked_at) == 2


def full_spec() -> task_pb2.TaskSpec:
    spec = task_pb2.TaskSpec(
        task_id="t",
        kind="echo",
        priority=task_pb2.PRIORITY_HIGH,
        dependencies=["a", "b"],
        placement=task_pb2.Placement(node_id="node-1", labels={"gpu": "yes"}),
        queue_timeout=Duration(seconds=5),
        run_timeout=Duration(nanos=500_000_000),
        max_attempts=7,
        submitter="me",
    )
    spec.payload.parameters["x"] = 1.5
    return spec


def test_a_spec_goes_through_the_core_unchanged() -> None:
    spec = full_spec()
    (task,) = hot_messages.tasks(pb.SubmitTasksRequest(tasks=[spec]).SerializeToString(), "caller", 60.0)
    task.submit_time = 0.0
    assert queries.task_to_proto(task, 0.0, payload=True).spec == spec
    assert task.placement == Placement("node-1", frozenset({("gpu", "yes")}))


def test_lists_leave_payloads_and_results_out() -> None:
    spec = full_spec()
    (task,) = hot_messages.tasks(pb.SubmitTasksRequest(tasks=[spec]).SerializeToString(), "caller", 60.0)
    task.submit_time = task.lease_time = task.end_time = 0.0
    task.state, task.result = TaskState.SUCCEEDED, task_pb2.Payload().SerializeToString()
    message = queries.task_to_proto(task, 0.0, payload=False)
    assert not message.spec.HasField("payload")
    assert not message.outcome.HasField("result")


@pytest.mark.parametrize("seconds", [float(1 << 63), float("inf"), -5.0])
def test_a_task_of_an_older_journal_can_be_shown_whatever_its_timeouts(seconds: float) -> None:
    task = Task("t", "noop", run_timeout=seconds, queue_timeout=seconds)
    task.submit_time = 0.0
    shown = queries.task_to_proto(task, 0.0, payload=False).spec
    assert 0 <= shown.run_timeout.seconds == shown.queue_timeout.seconds <= 100 * 365 * 86400
