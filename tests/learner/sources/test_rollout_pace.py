from learner.sources.rollout_pace import RolloutPace


def deliver(pace: RolloutPace, count: int, seconds: float) -> None:
    for number in range(count):
        pace.ask([str(number)], 0.0)
        pace.deliver(str(number), seconds)


def test_a_rollout_has_the_time_of_its_like_many_times_over_and_never_more_than_the_runs() -> None:
    pace = RolloutPace(60.0)
    deliver(pace, 15, 1.0)
    assert pace.limit == 60.0
    deliver(pace, 1, 1.0)
    assert pace.limit == 20.0
    deliver(pace, 64, 0.01)
    assert pace.limit == 10.0
    deliver(pace, 64, 5.0)
    assert pace.limit == 60.0


def test_where_all_have_become_slow_the_limit_grows_until_one_delivers() -> None:
    pace = RolloutPace(60.0)
    deliver(pace, 16, 0.01)
    limits = []
    for _ in range(5):
        limits.append(pace.limit)
        pace.ask(["slow"], 0.0)
        assert pace.end("slow", timed_out=True) is (limits[-1] < 60.0)
    assert limits == [10.0, 20.0, 40.0, 60.0, 60.0]
    deliver(pace, 1, 0.01)
    assert pace.limit == 10.0


def test_what_was_never_asked_for_or_ended_otherwise_is_not_slow() -> None:
    pace = RolloutPace(60.0)
    deliver(pace, 16, 0.01)
    pace.ask(["failed"], 0.0)
    assert not pace.end("failed", timed_out=False)
    assert not pace.end("unknown", timed_out=True)
    assert pace.limit == 10.0
