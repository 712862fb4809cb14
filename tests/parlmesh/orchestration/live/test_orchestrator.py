"""An orchestrator on a fleet of real processes: stages of parallel tasks, strange answers, budgets, a killed actor."""

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest

from parlmesh.client import PARLController
from parlmesh.client.sync import Controller
from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.orchestration import Budget, BudgetExceeded, critical_steps
from parlmesh.orchestration.jobs.reference_orchestrators import hand_rule, single_agent
from parlmesh.orchestration.jobs.simulation import Limits, Simulation
from parlmesh.orchestration.jobs.sub_agents import SUB_AGENTS
from parlmesh.orchestration.live import Orchestrator, play_job
from parlmesh.orchestration.training.evaluation import jobs_of

pytestmark = pytest.mark.e2e
PLUGINS = ["orchestration", f"{Path(__file__).parent}/odd_answers.py:plugin"]
LIMITS = Limits(1_000, 100, 10_000)


@pytest.fixture(scope="module")
def address():
    with Controller() as controller:
        controller.initialize(16, actor={"plugins": PLUGINS})
        yield controller.address


@pytest.fixture
async def controller(address):
    async with PARLController(address) as found:
        yield found


async def test_sub_agents_work_at_the_same_time_and_their_answers_are_observations(controller):
    job = Orchestrator(controller, job_id="thin")
    for number in range(3):
        job.create_subagent(f"sub-{number}")
        job.assign_task(f"sub-{number}", {"sub_task": number})
    found = await job.wait()
    expected = [SUB_AGENTS["small"].work(number) for number in range(3)]
    assert [(each.steps - 2, each.done) for each in found] == expected
    assert {each.value["digest"] for each in found} == {SUB_AGENTS["small"].digest}
    own = await job.work({"sub_task": 3})
    result = job.finish(answer=[each.done for each in found])
    assert result.spent["critical_steps"] == 3 + 1 + max(each.steps for each in found) + own.steps
    assert result.spent["critical_steps"] == critical_steps((stage.main, stage.group) for stage in result.stages)
    assert (await controller.result("thin/3-sub-1")).ok
    with pytest.raises(FailedPrecondition, match="job thin is finished"):
        job.create_subagent("late")


@pytest.mark.parametrize("family", ["wide_search", "mixed", "deep_chain"])
@pytest.mark.parametrize("choose", [hand_rule, single_agent])
async def test_a_job_on_the_fleet_costs_the_steps_that_the_simulation_says(controller, family, choose):
    job = jobs_of(family, "train", 1, 3)[0]
    for limits in (LIMITS, Limits(60, 100, 10_000)):
        world = Simulation(1, SUB_AGENTS["small"], limits)
        world.start([0], [job])
        while not world.ended[0]:
            world.step(choose(world), np.array([True]))
        played = await play_job(controller, job, choose, limits=limits)
        assert (played.critical_steps, played.coverage) == (world.critical[0], world.coverage[0])
        assert played.critical_steps <= limits.critical_steps


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"steps": -5}, "steps must be a whole number from 0 to 6, got -5"),
        ({"steps": 10**15}, "steps must be a whole number from 0 to 6, got 1000000000000000"),
        ({"steps": 2.5}, "steps must be a whole number from 0 to 6"),
        ({"steps": "many"}, "steps must be a number, got 'many'"),
        ({"steps": None}, "steps must be a number, got None"),
        ({"steps": True}, "steps must be a number, got True"),
        ({"steps": 1, "done": "yes"}, "done must be true or false, got 'yes'"),
        ({"done": "x" * 10_000}, "done must be true or false"),
    ],
)
async def test_an_answer_that_cannot_be_true_costs_its_own_sub_task_alone(controller, answer, sentence):
    job = Orchestrator(controller, kind="odd_answer", budget=Budget(critical_steps=9))
    for name, given in (("honest", {"steps": 2}), ("liar", answer)):
        job.create_subagent(name)
        job.assign_task(name, {"answer": given})
    honest, liar = await job.wait()
    assert (honest.done, honest.steps, liar.done, liar.value) == (True, 2, False, {})
    assert sentence in liar.error
    assert len(liar.error) < 300
    assert job.finish().spent["critical_steps"] <= 9


async def test_a_sub_agent_that_raises_is_an_observation_too(controller):
    job = Orchestrator(controller, kind="odd_answer")
    job.create_subagent("broken")
    job.assign_task("broken", {"raise": "no luck"})
    (found,) = await job.wait()
    assert (found.done, found.steps) == (False, 1)
    assert "no luck" in found.error


async def test_a_stage_beyond_the_budget_is_refused_and_changes_nothing(controller):
    job = Orchestrator(controller, budget=Budget(critical_steps=3, sub_agents=1))
    job.create_subagent("one")
    with pytest.raises(BudgetExceeded, match="sub_agents"):
        job.create_subagent("two")
    job.assign_task("one", {"sub_task": 0})
    (found,) = await job.wait()
    assert (found.steps, found.done) == (1, False)  # Cut off where the budget ends.
    assert job.budget.left["critical_steps"] == 0
    with pytest.raises(BudgetExceeded, match="critical_steps"):
        await job.work({"sub_task": 0})


async def test_calls_out_of_turn_are_refused_by_name(controller):
    job = Orchestrator(controller)
    with pytest.raises(FailedPrecondition, match="nothing is assigned"):
        await job.wait()
    with pytest.raises(InvalidInput, match="there is no sub-agent 'x'; there are none"):
        job.assign_task("x", {})
    for name in ("", "a/b", "x" * 65, "orchestrator", "new\nline"):
        with pytest.raises(InvalidInput):
            job.create_subagent(name)
    with pytest.raises(InvalidInput, match="no /"):
        Orchestrator(controller, job_id="a/b")
    job.create_subagent("x")
    job.assign_task("x", {"sub_task": 1, "step_seconds": 0.02})
    with pytest.raises(InvalidInput, match="already has a task"):
        job.assign_task("x", {})
    waiting = asyncio.ensure_future(job.wait())
    await asyncio.sleep(0)
    with pytest.raises(FailedPrecondition, match="one call at a time"):
        job.finish()
    await waiting


async def test_the_same_job_again_gets_the_outcomes_that_are_known(controller):
    async def play():
        job = Orchestrator(controller, job_id="again", kind="odd_answer")
        job.create_subagent("once")
        job.assign_task("once", {"answer": {}, "draw": True})
        return (await job.wait())[0].value["draw"]

    assert await play() == await play()


ORCHESTRATOR = """
import asyncio, sys
from parlmesh.client import PARLController
from parlmesh.orchestration.live import Orchestrator

async def main():
    async with PARLController(sys.argv[1]) as controller:
        job = Orchestrator(controller, job_id="resumed", kind="odd_answer")
        job.create_subagent("one")
        job.assign_task("one", {"answer": {}, "draw": True})
        print((await job.wait())[0].value["draw"], flush=True)
        job.assign_task("one", {"answer": {}, "draw": True, "seconds": float(sys.argv[2])})
        print((await job.wait())[0].done, flush=True)

asyncio.run(main())
"""


async def test_a_killed_orchestrator_goes_on_under_its_job_id(address):
    async def start(seconds):
        command = (sys.executable, "-c", ORCHESTRATOR, address, str(seconds))
        return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)

    first = await start(1.0)
    drawn = await first.stdout.readline()
    first.kill()
    assert await first.wait() == -9
    second = await start(1.0)
    told, _ = await second.communicate()
    assert told == drawn + b"True\n", "what had ended was done once"


async def test_a_group_outlives_the_actor_that_worked_on_it():
    async with PARLController() as controller:
        await controller.initialize(4, actor={"plugins": PLUGINS}, processes=1)
        job = Orchestrator(controller, kind="odd_answer", job_id="killed")
        for number in range(4):
            job.create_subagent(f"sub-{number}")
            job.assign_task(f"sub-{number}", {"kill_once": True, "answer": {"steps": 3}})
        found = await job.wait()
        assert [each.done for each in found] == [True] * 4
        attempts = [(await controller.result(each.task_id)).attempts for each in found]
        assert max(attempts) > 1, "no actor was killed"
