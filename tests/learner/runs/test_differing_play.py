import pytest

from learner.runs.evaluations import differ_much
from learner.sources.experience_source import Evaluation


@pytest.mark.parametrize(
    ("mean", "most", "training", "much"),
    [
        (0.27, 1.0, 0.94, True),
        (480.0, 500.0, 470.0, False),
        (-200.0, -150.0, -90.0, True),
        (-95.0, -80.0, -90.0, False),
    ],
)
def test_training_that_earns_far_more_than_its_evaluation_is_told(mean, most, training, much):
    assert differ_much(Evaluation(1, mean, 0.0, most, 20), training) is much
