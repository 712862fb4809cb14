"""Numbers too small for the processor's fast path: they leave Adam's state, and the caller's thread is as it was."""

import numpy as np
import pytest
import torch
from torch import nn

from parlmesh.training.continuous.perceptron import Optimised
from parlmesh.training.subnormals import flushed_subnormals, flushing

# After so many steps without a gradient Adam's first mean, which shrinks by a tenth each time, is below 1e-38.
STEPS = 1_500


def test_the_thread_computes_as_before_when_the_block_ends() -> None:
    assert not flushing()
    with flushed_subnormals():
        assert flushing()
    assert not flushing()
    with pytest.raises(ZeroDivisionError), flushed_subnormals():
        _ = 1 / 0
    assert not flushing()


def test_a_caller_that_flushes_still_does_afterwards() -> None:
    torch.set_flush_denormal(True)
    try:
        with flushed_subnormals():
            pass
        assert flushing()
    finally:
        torch.set_flush_denormal(False)


def test_weights_without_gradients_leave_no_subnormals_in_adams_state() -> None:
    optimised = Optimised(8, torch.device("cpu"))
    optimised.gradient.fill_(1.0)
    optimised.step(1e-3)
    optimised.gradient.zero_()
    for _ in range(STEPS):
        optimised.step(1e-3)
    mean = optimised.tensors("actor")["actor.exp_avg"]
    assert np.array_equal(mean, np.zeros(8, np.float32))


def test_without_it_they_would_stay() -> None:
    weight = nn.Parameter(torch.zeros(8))
    adam = torch.optim.Adam([weight], fused=True)
    weight.grad = torch.ones(8)
    adam.step()
    weight.grad.zero_()
    for _ in range(STEPS):
        adam.step()
    mean = adam.state[weight]["exp_avg"].numpy()
    assert np.all(mean != 0.0)
    assert np.all(np.abs(mean) < np.finfo(np.float32).smallest_normal)
