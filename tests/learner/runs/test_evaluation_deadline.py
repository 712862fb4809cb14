from learner.runs.evaluation_deadline import evaluation_seconds


def test_an_evaluation_has_as_long_as_the_environment_needs() -> None:
    assert evaluation_seconds(episodes=20, longest_episode=500, step_seconds=0.0) == 120.0
    assert evaluation_seconds(episodes=20, longest_episode=500, step_seconds=1e-5) == 120.0
    assert evaluation_seconds(episodes=20, longest_episode=5_000, step_seconds=0.002) == 3 * 20 * 20_000 * 0.002
