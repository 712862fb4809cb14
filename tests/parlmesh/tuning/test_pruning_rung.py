"""Parts of a trial, as actors train them."""

import numpy as np
import pytest

from parlmesh.errors import InvalidInput
from parlmesh.tuning.plugin import TuneHandler
from parlmesh.tuning.pruning_rung import train_rung
from parlmesh.tuning.search_space import checked

SMALL = {"num_envs": 4, "trajectory_steps": 16, "evaluation_episodes": 2, "hidden": [8], "step_budget": 256}


class Attempt:
    def __init__(self, stops_after=10**9):
        self.checks, self.stops_after = 0, stops_after

    def check(self):
        self.checks += 1
        if self.checks > self.stops_after:
            raise RuntimeError("cancelled")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": "dqn", "dqn": {"replay": {"min_steps": 32, "capacity_steps": 500}}},
        {"algorithm": "q_learning", "environment": {"id": "parlmesh/Placement-v1"}},
    ],
)
def test_the_next_part_goes_on_with_all_that_was_learnt(changes):
    config = checked({**SMALL, **changes})
    first = train_rung(config, (), {}, 0, 128)
    second = train_rung(config, (), first.tensors, first.steps, 256)
    assert first.steps >= 128
    assert second.steps >= 256
    again = train_rung(config, (), first.tensors, first.steps, 256)
    fresh = train_rung(config, (), {}, first.steps, 256)
    names = second.tensors.keys()
    assert all(np.array_equal(second.tensors[name], again.tensors[name]) for name in names)
    assert not all(np.array_equal(second.tensors[name], fresh.tensors[name]) for name in names)


def test_the_handler_looks_for_a_cancellation_before_every_update():
    attempt = Attempt(stops_after=2)
    with pytest.raises(RuntimeError, match="cancelled"):
        TuneHandler().run({"training": SMALL, "start": 0, "until": 10_000}, {}, attempt)
    assert attempt.checks == 3


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({}, "needs training, start and until"),
        ({"training": {}, "start": 5, "until": 5}, "start must be >= 0 and until above it"),
        ({"training": {"ppo": {"clip": 7}}, "start": 0, "until": 5}, "clip"),
    ],
)
def test_parameters_that_can_never_work_are_refused(parameters, said):
    with pytest.raises(InvalidInput, match=said):
        TuneHandler().run(parameters, {}, Attempt())
