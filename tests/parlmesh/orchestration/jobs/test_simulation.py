"""The simulated jobs against a slow independent count, and the environment against gymnasium's checker."""

import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.orchestration import Budget, critical_steps
from parlmesh.orchestration.jobs.environment import Orchestration, OrchestrationJobs
from parlmesh.orchestration.jobs.families import FAMILIES, TRIES, check_families, draw_job
from parlmesh.orchestration.jobs.observation import COLUMN, counts, observe
from parlmesh.orchestration.jobs.reference_orchestrators import (
    hand_rule,
    list_schedule,
    oracle,
    random_action,
    single_agent,
)
from parlmesh.orchestration.jobs.simulation import HANDOVER_STEPS, Action, Limits, Simulation
from parlmesh.orchestration.jobs.sub_agents import MOST_STEPS, SUB_AGENTS, SUB_TASKS, sub_agent

AGENT = SUB_AGENTS["small"]


class SlowJob:
    """One job, action by action, in plain Python: an independent count of everything."""

    def __init__(self, job, limits):
        self.job, self.limits = job, limits
        self.stages, self.done, self.tries = [], set(), [0] * job.size
        self.assigned, self.created, self.over = [], 0, False

    @property
    def spent(self):
        return critical_steps(self.stages)

    def ready(self):
        for index in range(self.job.size):
            needs = set(np.flatnonzero(self.job.needs[index]).tolist())
            if index not in self.done and index not in self.assigned and needs <= self.done:
                return index
        return None

    def attempt(self, index):
        draw = int(self.job.draws[index, self.tries[index] % TRIES])
        self.tries[index] += 1
        return AGENT.work(draw)

    def act(self, action):
        left = self.limits.critical_steps - self.spent
        if action == Action.WORK:
            index = self.ready()
            steps, found = self.attempt(index)
            self.stages.append((min(steps, left), []))
            if found and steps <= left:
                self.done.add(index)
            self.over = steps > left
        elif action == Action.CREATE:
            self.created += 1
            self.stages.append((1, []))
        elif action == Action.ASSIGN:
            self.assigned.append(self.ready())
        elif action == Action.WAIT:
            group = []
            for index in self.assigned:
                steps, found = self.attempt(index)
                group.append(min(steps + HANDOVER_STEPS, left - 1))
                if found and steps + HANDOVER_STEPS <= left - 1:
                    self.done.add(index)
            self.assigned = []
            self.stages.append((1, group))
        else:
            self.over = True
        used_up = self.spent >= self.limits.critical_steps
        self.over = self.over or used_up or len(self.done) == self.job.size


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(FAMILIES)), st.sampled_from([20, 160, 5_000]))
def test_the_simulation_equals_a_slow_count_and_never_exceeds_its_budget(seed, family, critical):
    rng = np.random.default_rng(seed)
    limits = Limits(critical, 100, 100_000)
    job = draw_job([family], "held_out", rng)
    world, slow = Simulation(1, AGENT, limits), SlowJob(job, limits)
    world.start([0], [job])
    budget = Budget(limits.critical_steps, limits.sub_agents, limits.coordinated_steps)
    for _ in range(300):
        if world.ended[0]:
            break
        mask = world.mask()
        mask[0, Action.FINISH] &= rng.random() < 0.05 or mask[0].sum() == 1
        action = random_action(mask, rng)
        world.step(action, np.array([True]))
        before = len(slow.stages)
        slow.act(Action(int(action[0])))
        for stage in slow.stages[before:]:
            budget.stage(*stage)  # Raises when a budget is exceeded.
    assert world.critical[0] == slow.spent == budget.spent["critical_steps"] <= critical
    assert world.coordinated[0] == budget.spent["coordinated_steps"]
    assert (world.created[0], bool(world.ended[0])) == (slow.created, slow.over)
    assert set(np.flatnonzero(world.done[0, : job.size]).tolist()) == slow.done
    seen = counts(observe(world))
    assert (seen["critical"][0], seen["created"][0]) == (slow.spent, slow.created)


def test_coordinated_steps_and_sub_agents_have_limits_of_their_own():
    job = draw_job(["wide_search"], "held_out", np.random.default_rng(0))
    world = Simulation(1, AGENT, Limits(1_000, 5, 60))
    world.start([0], [job])
    for _ in range(5):
        world.step(np.array([Action.CREATE]), np.array([True]))
    assert not world.mask()[0, Action.CREATE]
    while not world.ended[0]:
        world.step(hand_rule(world), np.array([True]))
    assert world.created[0] == 5
    assert world.coordinated[0] <= 60


def test_a_forbidden_action_costs_a_step_and_does_nothing_else():
    world = Simulation(1, AGENT, Limits())
    world.start([0], [draw_job(["wide_search"], "train", np.random.default_rng(0))])
    world.step(np.array([Action.WAIT]), np.array([True]))
    assert (world.critical[0], world.created[0], world.stages[0], bool(world.ended[0])) == (1, 0, 0, False)


def test_automatic_assignment_gives_every_sub_agent_what_is_ready():
    job = draw_job(["wide_search"], "train", np.random.default_rng(0))
    world = Simulation(1, AGENT, Limits(), "automatic")
    world.start([0], [job])
    for action in (Action.CREATE, Action.CREATE, Action.CREATE, Action.WAIT):
        assert not world.mask()[0, Action.ASSIGN]
        world.step(np.array([action]), np.array([True]))
    assert world.assigned_ever[0] == 3
    assert world.tries[0].sum() == 3


def test_the_environment_passes_gymnasiums_checks():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(Orchestration(split="held_out"))


def test_an_ended_job_is_replaced_in_the_next_step_and_pays_once():
    jobs = OrchestrationJobs(2, families=["deep_chain"])
    jobs.reset(seed=0)
    seen, reward, ended, _, _ = jobs.step(np.array([Action.FINISH, Action.CREATE]))
    assert (ended.tolist(), reward.tolist()) == ([True, False], [0.0, 0.0])
    assert seen["job"][0, COLUMN["finished"]] == 1.0
    seen, reward, ended, _, _ = jobs.step(np.array([Action.FINISH, Action.CREATE]))
    assert (ended.tolist(), seen["job"][0, COLUMN["finished"]]) == ([False, False], 0.0)


def test_the_same_seed_gives_the_same_jobs():
    first, second = OrchestrationJobs(8), OrchestrationJobs(8)
    assert np.array_equal(first.reset(seed=3)[0]["job"], second.reset(seed=3)[0]["job"])
    assert np.array_equal(first.world.draws, second.world.draws)


def test_a_sub_task_takes_a_sub_agent_the_same_steps_wherever_it_is_done():
    steps, found = AGENT.results
    for number in range(0, SUB_TASKS, 97):
        assert AGENT.work(number) == (steps[number], found[number])
    assert found.mean() == pytest.approx(0.857, abs=0.01)
    assert steps.max() == MOST_STEPS


def test_later_checkpoints_of_the_sub_agent_are_better():
    rates = [agent.results[1].mean() for agent in SUB_AGENTS.values()]
    assert rates == sorted(rates)
    assert len({agent.digest for agent in SUB_AGENTS.values()}) == 3


def test_on_a_chain_nobody_is_faster_than_one():
    for seed in range(5):
        job = draw_job(["deep_chain"], "train", np.random.default_rng(seed))
        assert oracle(job, AGENT) == list_schedule(job, AGENT, 1)
        world = Simulation(1, AGENT, Limits(10_000, 100, 10_000))
        world.start([0], [job])
        while not world.ended[0]:
            world.step(single_agent(world), np.array([True]))
        assert world.critical[0] < oracle(job, AGENT)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Limits(critical_steps=0), "critical_steps must be from 1 to 1000000, got 0"),
        (lambda: OrchestrationJobs(1, assigning="both"), "assigning must be separate or automatic, got 'both'"),  # type: ignore[arg-type]
        (lambda: sub_agent("huge"), "sub_agent must be one of small, medium, large, got 'huge'"),
        (lambda: AGENT.work(SUB_TASKS), f"sub_task must be a whole number from 0 to {SUB_TASKS - 1}"),
        (lambda: check_families(["narrow"], "train"), "families must be among"),
        (lambda: check_families(["map_reduce"], "train"), "family 'map_reduce' is held out"),
        (lambda: check_families([], "test"), "split must be train or held_out, got 'test'"),  # type: ignore[arg-type]
    ],
)
def test_mistakes_are_refused_by_name(make, sentence):
    with pytest.raises(InvalidInput) as refused:
        make()
    assert sentence in str(refused.value)
