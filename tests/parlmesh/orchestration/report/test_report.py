"""The report against networkx on random graphs, by hand on small jobs, and on jobs of a real fleet."""

import asyncio
import json
import random
import subprocess
import sys

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.client import PARLController, TaskRequest
from parlmesh.errors import InvalidInput, NotFound
from parlmesh.orchestration.report.critical_path import PARTS
from parlmesh.orchestration.report.report import report_of
from parlmesh.orchestration.report.report_text import comparison_of, lines_of
from parlmesh.orchestration.report.trace import Attempt, attempts_in


def attempt(name, start, end, *, submit=0.0, after=(), state="SUCCEEDED", number=1, actor="a", row=1):
    return Attempt(name, "sleep", state, actor, row, number, submit, start, end, tuple(after))


def random_graph(rng, size):
    """Seconds by task, and for each the earlier ones that it needs."""
    seconds = {f"job/{n}": rng.uniform(0.02, 0.2) for n in range(size)}
    names = list(seconds)
    needs = {name: [each for each in names[:n] if rng.random() < 1.5 / (n + 1)] for n, name in enumerate(names)}
    return seconds, needs


def critical_path(seconds, needs):
    """By networkx: length and tasks."""
    graph = networkx.DiGraph()
    graph.add_node("end")
    for name, parents in needs.items():
        graph.add_edge(name, "end", weight=seconds[name])
        graph.add_weighted_edges_from((parent, name, seconds[parent]) for parent in parents)
    return networkx.dag_longest_path_length(graph), networkx.dag_longest_path(graph)[:-1]


def scheduled(seconds, needs, slots, rng):
    """The trace of running the graph on some slots, with small delays."""
    free, found = [0.0] * slots, []
    ends: dict[str, float] = {}
    for name in needs:
        slot = min(range(slots), key=free.__getitem__)
        ready = max([0.0, *(ends[parent] for parent in needs[name])])
        start = max(free[slot], ready) + rng.uniform(0, 0.002)
        ends[name] = free[slot] = start + seconds[name]
        found.append(attempt(name, start, ends[name], after=needs[name], row=slot + 1))
    return found


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 8))
def test_the_longest_chain_is_that_of_networkx_and_the_parts_are_the_whole_time(seed, size, slots):
    rng = random.Random(seed)
    seconds, needs = random_graph(rng, size)
    report = report_of(scheduled(seconds, needs, slots, rng), "job", slots)
    length, tasks = critical_path(seconds, needs)
    assert report.critical_path == pytest.approx(length)
    assert sum(seconds[name] for name in report.critical_tasks) == pytest.approx(length)
    assert set(report.critical_tasks) == set(tasks)
    assert sum(report.parts.values()) == pytest.approx(report.wall)
    assert sum(report.idleness.slot_seconds.values()) == pytest.approx(report.slots * report.wall)
    assert report.idleness.slot_seconds["working"] == pytest.approx(sum(seconds.values()))
    for before, after in zip(report.chain, report.chain[1:], strict=False):
        assert before.end == pytest.approx(after.start)
    assert report.critical_path <= report.with_one_more + 1e-9
    assert lines_of(report)


@pytest.mark.parametrize("state", ["RETRIED", "LOST"])
def test_the_parts_of_a_small_job_by_hand(state):
    # a runs 1 s; b needs it, is tried once for 2 s and waits 1 s for a slot before and after; c was submitted late.
    attempts = [
        attempt("j/a", 0.0, 1.0),
        attempt("j/b", 2.0, 4.0, after=["j/a"], state=state),
        attempt("j/b", 5.0, 6.0, after=["j/a"], number=2),
        attempt("j/c", 9.0, 10.0, submit=8.0),
    ]
    # The scheduler's trace has the newest first.
    report = report_of(attempts[::-1], "j", slots=1)
    assert report.parts == {"run": 3.0, "slot": 3.0, "retry": 2.0, "orchestrator": 2.0}
    assert [segment.part for segment in report.chain] == [
        "run",
        "slot",
        "retry",
        "slot",
        "run",
        "orchestrator",
        "slot",
        "run",
    ]
    assert (report.wall, report.work, report.critical_steps, report.retried) == (10.0, 5.0, 3, 1)
    assert report.idleness.slot_seconds == {
        "working": 5.0,
        "working for others": 0.0,
        "idle: ready tasks had not reached a slot": 3.0,
        "idle: all that was left waited for others": 0.0,
        "idle: nothing was submitted": 2.0,
    }


def test_one_more_worker_helps_a_wide_job_and_not_a_chain():
    wide = [attempt(f"w/{n}", n // 2, n // 2 + 1, row=n % 2 + 1) for n in range(6)]
    report = report_of(wide, "w", slots=2)
    assert (report.estimated, report.with_one_more) == (3.0, 2.0)
    assert "one more slot would have saved 33%" in lines_of(report)[-1]
    chain = [attempt(f"c/{n}", n, n + 1, after=[f"c/{n - 1}"] if n else []) for n in range(4)]
    assert "one more slot would have saved nothing" in lines_of(report_of(chain, "c", slots=2))[-1]
    said = comparison_of(report_of(wide, "w", 2), report_of(chain, "c", 2))[-1]
    assert said.startswith("+1.000 s in all, most of it running on the chain (+3.000 s): about the same work")


def test_other_jobs_work_does_not_count_as_idleness():
    attempts = [attempt("j/a", 0.0, 2.0), attempt("k/a", 0.0, 1.0, row=2)]
    found = report_of(attempts, "j", slots=2).idleness.slot_seconds
    assert (found["working"], found["working for others"]) == (2.0, 1.0)


def test_a_single_task_brings_all_that_it_depends_on():
    attempts = [attempt("a", 0, 1), attempt("b", 1, 2, after=["a", "gone"]), attempt("c", 0, 9)]
    report = report_of(attempts, "b", slots=1)
    assert (report.tasks, report.unknown, report.wall) == (2, 1, 2)
    assert "incomplete: 1 dependencies are no longer in the trace" in lines_of(report)


def test_a_missing_job_and_an_invalid_trace_are_refused():
    with pytest.raises(NotFound, match='no ended task of job "x"'):
        report_of([attempt("xx/a", 0, 1)], "x", 1)
    for broken in ("", "[]", "{}", '{"traceEvents": [{"ph": "X"}]}', '{"traceEvents": 3}'):
        with pytest.raises(InvalidInput, match="the trace cannot be read"):
            attempts_in(broken)


async def told(*arguments):
    command = [sys.executable, "-m", "parlmesh.cli", "job", *arguments]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)


@pytest.mark.e2e
async def test_reports_of_twenty_random_graphs_on_a_real_fleet(tmp_path):
    rng = random.Random(18)
    graphs = {}
    for number in range(20):
        seconds, needs = random_graph(rng, 10)
        rename = {name: name.replace("job", f"graph-{number}") for name in seconds}
        graphs[f"graph-{number}"] = (
            {rename[name]: value for name, value in seconds.items()},
            {rename[name]: [rename[each] for each in parents] for name, parents in needs.items()},
        )
    async with PARLController() as controller:
        await controller.initialize(200)
        for seconds, needs in graphs.values():
            requests = [
                TaskRequest("sleep", {"seconds": seconds[name]}, task_id=name, dependencies=needs[name])
                for name in seconds
            ]
            await controller.submit_tasks(requests)
        for seconds, _ in graphs.values():
            for name in seconds:
                assert (await controller.result(name)).ok
        attempts = attempts_in(await controller.get_trace())
        perfetto = tmp_path / "job.json"
        address = ("--scheduler", controller.address)
        printed = await told("report", "graph-3", *address, "--perfetto", str(perfetto))
        compared = await told("compare", "graph-3", "graph-4", *address)
        missing = await told("report", "nobody", *address)
    for name, (seconds, needs) in graphs.items():
        report = report_of(attempts, name, 200)
        measured = {each.task_id: each.seconds for each in attempts if each.task_id in seconds}
        # The loop's timers have whole milliseconds.
        assert all(measured[each] >= seconds[each] - 0.002 for each in seconds)
        # Equal to networkx on what was measured; the known durations are a bound that sleeping never undercuts.
        assert report.critical_path == pytest.approx(critical_path(measured, needs)[0])
        assert report.critical_path >= critical_path(seconds, needs)[0] - 0.002 * len(needs)
        assert sum(report.parts.values()) == pytest.approx(report.wall, rel=0.02)
    assert "job graph-3: 10 tasks on 200 slots" in printed.stdout
    assert "graph-3:" in compared.stdout
    assert {event["ph"] for event in json.loads(perfetto.read_text())["traceEvents"]} == {"M", "X"}
    assert (missing.returncode != 0, 'no ended task of job "nobody"' in missing.stderr) == (True, True)
    assert set(PARTS) == {"run", "slot", "retry", "orchestrator"}
