from learner.experience.rollout_deadline import RolloutDeadline


def deliver(deadline: RolloutDeadline, count: int, seconds: float) -> None:
    for number in range(count):
        deadline.ask([str(number)], 0.0)
        deadline.deliver(str(number), seconds)


def test_a_rollout_has_the_time_of_its_like_many_times_over_and_never_more_than_the_runs() -> None:
    deadline = RolloutDeadline(60.0)
    deliver(deadline, 15, 1.0)
    assert deadline.limit == 60.0
    deliver(deadline, 1, 1.0)
    assert deadline.limit == 20.0
    deliver(deadline, 64, 0.01)
    assert deadline.limit == 10.0
    deliver(deadline, 64, 5.0)
    assert deadline.limit == 60.0


def test_where_all_have_become_slow_the_limit_grows_until_one_delivers() -> None:
    deadline = RolloutDeadline(60.0)
    deliver(deadline, 16, 0.01)
    limits = []
    for _ in range(5):
        limits.append(deadline.limit)
        deadline.ask(["slow"], 0.0)
        assert deadline.end("slow", timed_out=True) is (limits[-1] < 60.0)
    assert limits == [10.0, 20.0, 40.0, 60.0, 60.0]
    deliver(deadline, 1, 0.01)
    assert deadline.limit == 10.0


def test_what_was_never_asked_for_or_ended_otherwise_is_not_slow() -> None:
    deadline = RolloutDeadline(60.0)
    deliver(deadline, 16, 0.01)
    deadline.ask(["failed"], 0.0)
    assert not deadline.end("failed", timed_out=False)
    assert not deadline.end("unknown", timed_out=True)
    assert deadline.limit == 10.0
