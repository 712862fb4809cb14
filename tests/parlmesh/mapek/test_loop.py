"""A loop over fifty nodes of real actors: the sick one is found and healed, the others are left alone."""

import asyncio
import random

import pytest

from parlmesh.mapek.knowledge import Knowledge
from parlmesh.mapek.node.thresholds import STEADY
from parlmesh.mapek.types import Health, Status
from parlmesh.testing.clocks import HandClock

pytestmark = pytest.mark.e2e
SICK = "local-0-3"
LEASED = "local-0-9"


async def test_one_sick_node_of_fifty_is_found_in_one_cycle_and_gets_exactly_one_action(mesh, loop_of, knowledge):
    mesh.says(local_0_3={"cpu_percent": 95.0, "memory_percent": 30.0})
    report = await loop_of().cycle()
    assert len(report.nodes) == 50
    assert [node.node for node in report.of(Health.SICK)] == [SICK]
    assert len(report.of(Health.HEALTHY)) == 49
    assert mesh.deeds() == [f"did cpu {SICK}"]
    [kept] = knowledge.decisions(100)
    assert (kept.node, kept.action, kept.status, kept.rule) == (SICK, "mend-cpu", Status.WORKED, "cpu_percent")


async def test_the_effect_of_an_action_is_measured_one_cycle_later(mesh, loop_of, knowledge):
    mesh.says(local_0_3={"cpu_percent": 95.0})
    loop = loop_of()
    await loop.cycle()
    mesh.says(local_0_3={"cpu_percent": 40.0})
    await loop.cycle()
    [decision] = knowledge.decisions(10, held=False)
    assert decision.measured == "cpu_percent 95 before, 40 one cycle later"


async def test_two_faults_of_one_node_get_one_action_a_cycle_the_more_urgent_first(mesh, loop_of):
    mesh.says(local_0_3={"cpu_percent": 95.0, "memory_percent": 99.0})
    loop = loop_of()
    first = await loop.cycle()
    assert mesh.deeds() == [f"did memory {SICK}"]
    held = [each for each in first.decisions if each.status is Status.HELD]
    assert [each.symptom.name for each in held] == ["cpu_percent"]
    assert "one action at a time" in held[0].reason
    await loop.cycle()
    assert mesh.deeds() == [f"did memory {SICK}", f"did cpu {SICK}"]


async def test_two_loops_at_one_moment_on_one_mesh_do_not_act_on_the_same_node(mesh, loop_of, tmp_path):
    mesh.says(local_0_9={"cpu_percent": 95.0})
    with Knowledge(tmp_path / "other.sqlite") as other:
        first = loop_of(name="first-of-two", lease_seconds=60)
        second = loop_of(name="second-of-two", lease_seconds=60, knowledge=other)
        reports = await asyncio.gather(first.cycle(), second.cycle())
    assert mesh.deeds() == ["did cpu local-0-9"]
    [held] = [each for report in reports for each in report.decisions if each.status is Status.HELD]
    assert "-of-two" in held.reason
    assert "holds the node's lease for another" in held.reason


@pytest.mark.slow  # test_thresholds has the same without a fleet, for many seeds
async def test_a_metric_that_flaps_for_a_hundred_cycles_gets_one_action_at_most(mesh, loop_of):
    clock, rng = HandClock(), random.Random(1)
    loop = loop_of(
        nodes=[SICK], clock=clock, rules=[{"symptom": "cpu_percent", "actions": ["mend-cpu"], "cooldown_seconds": 30}]
    )
    crossings, before = 0, False
    for _ in range(100):
        value = rng.gauss(80, 8)
        crossings += (value >= 80) != before
        before = value >= 80
        mesh.says(local_0_3={"cpu_percent": value})
        await loop.cycle()
        clock.advance(60.0)
    assert crossings > 30
    assert len(mesh.deeds()) <= 1


async def test_a_failed_action_is_rolled_back_and_another_is_tried_next(mesh, loop_of, knowledge):
    clock = HandClock()
    mesh.says(local_0_3={"cpu_percent": 95.0})
    useless = {"kind": "mend", "parameters": {"node": "{node}", "word": "useless"}, "verify": {}}
    other = {"kind": "mend", "parameters": {"node": "{node}", "word": "other"}}
    loop = loop_of(
        clock=clock,
        actions={"useless": useless, "other": other},
        rules=[{"symptom": "cpu_percent", "actions": ["useless", "other"], "cooldown_seconds": 100}],
    )
    await loop.cycle()
    assert mesh.deeds() == [f"did useless {SICK}", f"undid before useless {SICK}"]
    [decision] = knowledge.decisions(10)
    assert decision.status is Status.ROLLED_BACK
    assert "95 before, 95 after" in decision.error
    clock.advance(150.0)
    for _ in range(STEADY):
        report = await loop.cycle()
    assert "doubled after 1 failure" in report.decisions[0].reason
    assert len(mesh.deeds()) == 2
    clock.advance(100.0)
    await loop.cycle()
    assert mesh.deeds()[2:] == [f"did other {SICK}"]


async def test_a_missing_answer_is_unknown_and_after_some_cycles_a_symptom(mesh, loop_of):
    loop = loop_of(nodes=["local-0-1", "nobody-has-this-name"], node_seconds=0.3, unknown_cycles=2)
    first = await loop.cycle()
    [unknown] = first.of(Health.UNKNOWN)
    assert unknown.node == "nobody-has-this-name"
    assert unknown.why_unknown
    assert not unknown.symptoms
    second = await loop.cycle()
    [unknown] = second.of(Health.UNKNOWN)
    assert [each.name for each in unknown.symptoms] == ["unreachable"]


async def test_a_probe_without_an_answer_makes_a_node_unknown_not_healthy(mesh, loop_of):
    mesh.says(missing={SICK: {"rtt_ms.gateway": "it answered none of 3"}})
    report = await loop_of(nodes=[SICK, "local-0-4"]).cycle()
    assert [node.health for node in report.nodes] == [Health.UNKNOWN, Health.HEALTHY]
    assert "rtt_ms.gateway" in report.nodes[0].why_unknown


async def test_the_breaker_opens_after_five_failures_and_lets_three_probes_through(mesh, loop_of):
    clock = HandClock()
    mesh.says(**{f"local_0_{number}": {"cpu_percent": 95.0} for number in range(9)})
    nodes = [f"local-0-{number}" for number in range(9)]
    broken = {"kind": "mend", "parameters": {"node": "{node}", "fails": True}, "disruptive": False, "rollback": False}
    loop = loop_of(
        clock=clock,
        nodes=nodes,
        actions={"broken": broken},
        rules=[{"symptom": "cpu_percent", "actions": ["broken"], "cooldown_seconds": 0}],
    )
    await loop.cycle("sequential")
    assert len(mesh.deeds()) == 5
    clock.advance(61.0)
    report = await loop.cycle("sequential")
    assert len(mesh.deeds()) == 6, "the first failed probe opens it again"
    held = [each for each in report.decisions if each.status is Status.HELD]
    assert len(held) == len(nodes) - 1
    assert "circuit breaker" in held[-1].reason


async def test_no_more_than_a_fifth_of_the_nodes_is_disturbed_at_once(mesh, loop_of):
    mesh.says(**{"*": {"cpu_percent": 95.0}})
    report = await loop_of().cycle()
    done = [each for each in report.decisions if each.status is Status.WORKED]
    held = [each for each in report.decisions if each.status is Status.HELD]
    assert len(done) + len(held) == 50
    # One of the ten may hold the lease of another test's loop.
    assert len(done) >= 9
    assert {each.reason for each in held if each.node != LEASED and "at most 10 of 50" not in each.reason} == set()


async def test_a_restarted_loop_remembers_its_cool_down(mesh, loop_of):
    mesh.says(local_0_3={"cpu_percent": 95.0})
    await loop_of().cycle()
    report = await loop_of().cycle()
    assert len(mesh.deeds()) == 1
    assert "cooling down" in report.decisions[0].reason


async def test_a_dry_run_touches_nothing_and_does_not_count_as_a_success(mesh, loop_of, knowledge):
    mesh.says(local_0_3={"cpu_percent": 95.0})
    report = await loop_of(dry_run=True).cycle()
    assert [each.status for each in report.actions] == [Status.DRY_RUN]
    assert mesh.deeds() == []
    assert knowledge.what_worked() == []


async def test_actions_that_a_nodes_operator_does_not_allow_are_not_taken(mesh, loop_of):
    mesh.says(local_0_3={"cpu_percent": 95.0})
    actions = {"stop": {"kind": "restart_unit", "parameters": {"unit": "ssh.service"}}}
    loop = loop_of(actions=actions, rules=[{"symptom": "cpu_percent", "actions": ["stop"]}])
    [decision] = (await loop.cycle()).decisions
    assert decision.status is Status.FAILED
    assert "not allowed on this node" in decision.error


async def test_a_fifth_of_the_actors_killed_in_a_cycle_leaves_it_whole_and_naming_the_unknown(mesh, loop_of):
    # The ten actors of one process die as soon as the first of them is read.
    mesh.says(dies=["local-2-0"], local_0_3={"cpu_percent": 95.0})
    report = await loop_of(node_seconds=2.0).cycle()
    assert (mesh.folder / "deaths").read_text().startswith("local-2-0"), "the fault took place"
    unknown = report.of(Health.UNKNOWN)
    assert "local-2-0" in [node.node for node in unknown]
    assert all(node.node.startswith("local-2-") and node.why_unknown for node in unknown)
    assert len(report.nodes) == 50
    assert mesh.deeds() == [f"did cpu {SICK}"]
