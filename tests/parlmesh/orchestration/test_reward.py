"""The reward against hand-computed values, and against the mistakes of the first community version."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.orchestration import PARLReward, anneal


def test_the_published_quick_start_runs_with_only_the_package_renamed(capsys: pytest.CaptureFixture[str]) -> None:
    from parlmesh.orchestration import CriticalStepsMetric, PARLReward

    reward_fn = PARLReward(
        lambda_init=0.1,
        lambda_final=0.0,
        total_training_steps=10000,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
    num_subagents = torch.tensor([25, 30, 40])
    trajectory_features = torch.randn(3, 64)
    success = torch.tensor([1.0, 1.0, 0.0])
    rewards = reward_fn.compute_full_reward(
        num_subagents=num_subagents,
        trajectory_features=trajectory_features,
        success=success,
        training_step=5000,
        max_subagents=100,
    )
    print(f"Total Reward: {rewards['total_reward']}")
    print(f"Lambda: {rewards['lambda_aux']:.4f}")
    print(f"Parallelism Component: {rewards['instantiation_component']}")
    print(f"Task Success Component: {rewards['task_component']}")
    critical_steps = CriticalStepsMetric()(torch.ones(3, 5) * 0.1, torch.rand(3, 5, 10))
    print(f"Critical Steps: {critical_steps}")
    assert "Lambda: 0.0500" in capsys.readouterr().out
    assert isinstance(critical_steps, torch.Tensor)
    assert critical_steps.shape == (3,)


def test_the_report_form_adds_both_auxiliary_terms_to_the_outcome() -> None:
    found = PARLReward(lambda1_init=0.3, lambda2_init=0.2, total_training_steps=100).compute_full_reward(
        num_subagents=[50, 10],
        success=[1.0, 0.0],
        quality=[0.8, 0.9],
        training_step=50,
        completed_subtasks=[3, 0],
        assigned_subtasks=[4, 0],
    )
    # Halfway the lambdas are .15 and .1: .15*.5 + .1*.75 + .8, and .15*.1 + 0 + 0.
    np.testing.assert_allclose(found["total_reward"], [0.95, 0.015])
    np.testing.assert_allclose(found["r_finish"], [0.75, 0.0])
    np.testing.assert_allclose(found["finish_component"], [0.075, 0.0])


def test_the_blog_form_weighs_the_outcome_down_while_it_teaches_parallelism() -> None:
    found = PARLReward(form="blog").compute_full_reward([50], success=[1.0], quality=[0.8], training_step=0)
    np.testing.assert_allclose(found["total_reward"], [0.1 * 0.5 + 0.9 * 0.8])
    np.testing.assert_allclose(found["task_component"], [0.72])


@pytest.mark.parametrize("form", ["report", "blog"])
def test_at_the_end_only_the_outcome_counts(form: str) -> None:
    reward = PARLReward(form=form, total_training_steps=10)  # type: ignore[arg-type]
    found = reward.compute_full_reward([100], success=[1.0], quality=[0.4], training_step=10)
    np.testing.assert_allclose(found["total_reward"], found["r_perf"])


def test_more_sub_agents_than_allowed_earn_nothing_more() -> None:
    assert PARLReward().compute_instantiation_reward(250, max_subagents=100) == 1.0


def test_a_rate_that_nobody_measured_earns_nothing() -> None:
    assert PARLReward().compute_full_reward([1], success=[1.0], quality=[1.0])["r_finish"].tolist() == [0.0]


@pytest.mark.parametrize(("step", "expected"), [(-5_000, 0.1), (0, 0.1), (10_000, 0.0), (20_000, 0.0)])
def test_progress_before_the_start_and_after_the_end_is_held(step: int, expected: float) -> None:
    assert PARLReward().anneal_lambda(step) == expected


@given(st.floats(0, 1), st.floats(0, 1), st.floats(-1e6, 1e6), st.sampled_from(["linear", "cosine", "constant"]))
def test_a_weight_never_leaves_the_range_of_its_ends(first: float, last: float, step: float, shape: str) -> None:
    value = anneal(first, last, step, 1000, shape)  # type: ignore[arg-type]
    assert min(first, last) - 1e-12 <= value <= max(first, last) + 1e-12


def test_tensors_and_arrays_give_the_same_numbers() -> None:
    arguments = {"num_subagents": [5, 70], "success": [1.0, 0.5], "quality": [0.3, 0.9], "training_step": 100}
    arrays = PARLReward().compute_full_reward(**arguments)  # type: ignore[arg-type]
    tensors = PARLReward().compute_full_reward(**{**arguments, "quality": torch.tensor([0.3, 0.9])})  # type: ignore[arg-type]
    assert isinstance(tensors["total_reward"], torch.Tensor)
    assert isinstance(arrays["total_reward"], np.ndarray)
    np.testing.assert_allclose(tensors["total_reward"].numpy(), arrays["total_reward"], rtol=1e-6)


def test_gradients_flow_through_the_quality() -> None:
    quality = torch.tensor([0.5], requires_grad=True)
    PARLReward().compute_full_reward([5], success=[1.0], quality=quality)["total_reward"].sum().backward()
    assert quality.grad is not None
    assert quality.grad.item() == 1.0


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: PARLReward(total_training_steps=0), "total_training_steps must be >= 1, got 0"),
        (lambda: PARLReward(lambda1_init=2), "lambda1_init must be from 0 to 1, got 2"),
        (lambda: PARLReward(form="other"), "form is 'other'"),  # type: ignore[arg-type]
        (lambda: PARLReward(schedule="steps"), "schedule is 'steps'"),  # type: ignore[arg-type]
        (lambda: PARLReward().compute_instantiation_reward(-1), "num_subagents must be >= 0"),
        (lambda: PARLReward().compute_instantiation_reward(1, 0), "max_subagents must be >= 1, got 0"),
        (lambda: PARLReward().compute_finish_reward([3], [2]), "completed_subtasks must not be above"),
        (lambda: PARLReward().compute_full_reward([1], quality=[float("nan")]), "quality must be finite"),
        (lambda: PARLReward().compute_full_reward(["a"], quality=[0.5]), "num_subagents must be numbers, got ['a']"),
        (
            lambda: PARLReward().compute_full_reward([1, 2], quality=[0.5]),
            "batches must have the same number of episodes, got num_subagents 2, quality 1",
        ),
        (lambda: PARLReward().compute_finish_reward([1, 2], [2, 2, 2]), "completed_subtasks 2, assigned_subtasks 3"),
        (lambda: PARLReward()([0.1], [0.1, 0.2], [0.1], 1), "r_parallel 1, r_finish 2, r_perf 1"),
        (lambda: PARLReward().compute_full_reward([1]), "give either trajectory_features or quality"),
    ],
)
def test_mistakes_are_refused_by_name(make: object, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        make()  # type: ignore[operator]
    assert sentence in str(refused.value)


def test_importing_it_does_not_import_torch() -> None:
    program = "import parlmesh.orchestration, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
