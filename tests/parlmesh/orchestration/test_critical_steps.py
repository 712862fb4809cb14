"""Critical steps by hand, ragged and empty groups, and budgets that hold."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.orchestration import Budget, BudgetExceeded, CriticalStepsMetric, critical_steps

STAGES = st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=5)), max_size=8)


def test_a_stage_costs_its_own_steps_and_its_slowest_sub_agent() -> None:
    # 1 + max(3, 7, 5), then 1 alone, then 2 + max(4).
    assert critical_steps([(1, [3, 7, 5]), (1, []), (2, [4])]) == 15


def test_a_batch_of_arrays_is_summed_over_its_stages() -> None:
    main = np.array([[1.0, 1.0], [2.0, 0.0]])
    group = np.array([[[3, 7], [0, 0]], [[4, 1], [0, 0]]])
    np.testing.assert_array_equal(CriticalStepsMetric()(main, group), [9, 6])


def test_an_empty_axis_of_sub_agents_is_the_orchestrator_alone() -> None:
    for main, group in ((np.ones((2, 3)), np.zeros((2, 3, 0))), (torch.ones(2, 3), torch.zeros(2, 3, 0))):
        assert CriticalStepsMetric()(main, group).tolist() == [3.0, 3.0]


@given(st.lists(STAGES, min_size=1, max_size=4))
def test_ragged_lists_equal_the_padded_arrays(jobs: list[list[tuple[int, list[int]]]]) -> None:
    stages = max(len(job) for job in jobs)
    width = max((len(group) for job in jobs for _, group in job), default=0)
    main, groups = np.zeros((len(jobs), stages)), np.zeros((len(jobs), stages, width))
    for j, job in enumerate(jobs):
        for t, (own, group) in enumerate(job):
            main[j, t], groups[j, t, : len(group)] = own, group
    metric = CriticalStepsMetric(orchestration_overhead=0.5)
    ragged = metric([[own for own, _ in job] for job in jobs], [[group for _, group in job] for job in jobs])
    np.testing.assert_allclose(ragged, metric(main, groups))


def test_the_overhead_counts_once_for_every_stage_that_did_something() -> None:
    assert CriticalStepsMetric(0.1)(np.array([[1.0, 0.0]]), np.zeros((1, 2, 1))).tolist() == [1.1]


@pytest.mark.parametrize(
    ("main", "group", "sentence"),
    [
        (np.ones((2, 3)), np.ones((2, 4, 1)), "main_steps must be [B, T] and sub_steps [B, T, N]"),
        (np.ones((1, 1)), np.full((1, 1, 1), np.nan), "sub_steps must be finite"),
        (-np.ones((1, 1)), np.ones((1, 1, 1)), "main_steps must be >= 0"),
        ([[1]], [[[1]], [[2]]], "main_steps has 1 jobs, sub_steps 2"),
        ([[1, 2]], [[[1]]], "job 0: main_steps has 2 stages, sub_steps 1"),
        ([["a"]], [[[1]]], "main steps of stage 0 must be numbers"),
    ],
)
def test_mismatched_inputs_are_refused(main: object, group: object, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        CriticalStepsMetric()(main, group)
    assert sentence in str(refused.value)


@given(STAGES)
def test_a_budget_is_never_exceeded_and_a_refused_stage_costs_nothing(stages: list[tuple[int, list[int]]]) -> None:
    budget = Budget(critical_steps=20, coordinated_steps=30)
    taken = []
    for stage in stages:
        before = budget.spent
        try:
            budget.stage(*stage)
            taken.append(stage)
        except BudgetExceeded:
            assert budget.spent == before
    assert budget.spent["critical_steps"] == critical_steps(taken) <= 20
    assert budget.spent["coordinated_steps"] == sum(own + sum(group) for own, group in taken) <= 30


def test_the_hundred_and_first_sub_agent_is_refused() -> None:
    budget = Budget()
    budget.create(100)
    with pytest.raises(BudgetExceeded, match="sub_agents: 100 spent plus 1 more exceeds the limit 100"):
        budget.create()
    assert budget.left["sub_agents"] == 0


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
def test_a_budget_without_a_limit_is_refused(limit: float) -> None:
    with pytest.raises(InvalidInput, match="critical_steps must be > 0 and finite"):
        Budget(critical_steps=limit)
