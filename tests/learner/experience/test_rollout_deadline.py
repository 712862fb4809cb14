from learner.experience.rollout_deadline import RolloutDeadline


def deliver(deadline: RolloutDeadline, count: int, seconds: float) -> None:
    for _ in range(count):
        deadline.took(seconds)


def test_a_rollout_has_the_time_of_its_like_many_times_over_and_never_more_than_the_runs() -> None:
    deadline = RolloutDeadline(60.0)
    deliver(deadline, 15, 1.0)
    assert deadline.seconds == 60.0
    deliver(deadline, 1, 1.0)
    assert deadline.seconds == 20.0
    deliver(deadline, 64, 0.01)
    assert deadline.seconds == 10.0
    deliver(deadline, 64, 5.0)
    assert deadline.seconds == 60.0


def test_where_all_have_become_slow_the_limit_grows_until_one_delivers() -> None:
    deadline = RolloutDeadline(60.0)
    deliver(deadline, 16, 0.01)
    limits = []
    for _ in range(5):
        limits.append(deadline.seconds)
        assert deadline.missed(limits[-1]) is (limits[-1] < 60.0)
    assert limits == [10.0, 20.0, 40.0, 60.0, 60.0]
    deliver(deadline, 1, 0.01)
    assert deadline.seconds == 10.0
