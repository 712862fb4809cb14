"""open-parl 0.1.0 beside ours: equal where it is right, and every place where it is not."""

import numpy as np
import pytest
import torch

from parlmesh.errors import InvalidInput
from parlmesh.orchestration import CriticalStepsMetric, PARLReward

parl = pytest.importorskip("parl", reason="open-parl is not installed")


@pytest.mark.parametrize("step", [0, 2_500, 5_000, 10_000])
def test_the_two_term_reward_is_the_same(step):
    given = {
        "num_subagents": torch.tensor([0, 25, 100]),
        "trajectory_features": torch.rand(3, 64, generator=torch.Generator().manual_seed(0)),
        "success": torch.tensor([1.0, 1.0, 0.0]),
        "training_step": step,
        "max_subagents": 100,
    }
    theirs = parl.PARLReward(lambda_init=0.1, lambda_final=0.0, total_training_steps=10_000).compute_full_reward(
        **given
    )
    ours = PARLReward(lambda_init=0.1, lambda_final=0.0, form="blog").compute_full_reward(**given)
    for name in ("total_reward", "r_parallel", "instantiation_component", "task_component"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-7)
    assert float(ours["lambda_aux"]) == pytest.approx(float(theirs["lambda_aux"]))


def test_critical_steps_are_the_same():
    main, group = torch.ones(3, 5), torch.rand(3, 5, 10, generator=torch.Generator().manual_seed(0))
    theirs = parl.CriticalStepsMetric()(main, group)
    np.testing.assert_allclose(CriticalStepsMetric()(main, group), theirs, rtol=1e-6)


def test_theirs_pays_for_more_sub_agents_than_allowed_and_ours_does_not():
    assert float(parl.PARLReward().compute_instantiation_reward(torch.tensor([250.0]), 100)[0]) == 2.5
    assert float(PARLReward().compute_instantiation_reward(torch.tensor([250.0]), 100)[0]) == 1.0


def test_theirs_has_no_critical_steps_without_sub_agents_and_ours_does():
    with pytest.raises(IndexError):
        parl.CriticalStepsMetric()(torch.ones(1, 2), torch.zeros(1, 2, 0))
    assert CriticalStepsMetric()(torch.ones(1, 2), torch.zeros(1, 2, 0)).tolist() == [2.0]


def test_theirs_goes_beyond_its_first_weight_before_the_start_and_ours_holds_it():
    assert float(parl.PARLReward().anneal_lambda(-5_000)) == pytest.approx(0.15)
    assert PARLReward().anneal_lambda(-5_000) == pytest.approx(0.1)


def test_theirs_divides_by_no_steps_at_all_and_ours_refuses_them():
    with pytest.raises(ZeroDivisionError):
        parl.PARLReward(total_training_steps=0).anneal_lambda(1)
    with pytest.raises(InvalidInput, match="total_training_steps must be >= 1, got 0"):
        PARLReward(total_training_steps=0)
