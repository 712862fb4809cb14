from hypothesis import given
from hypothesis import strategies as st

from parlmesh.processes.restart_policy import RestartLimits, restart_delay

LIMITS = RestartLimits(first_seconds=0.1, factor=2.0, longest_seconds=1.0, window_seconds=60.0, max_restarts=6)


def test_each_end_within_the_window_doubles_the_delay_up_to_the_longest() -> None:
    clock, ends, delays = 100.0, list[float](), list[float | None]()
    for _ in range(6):
        clock += 1.0
        ends.append(clock)
        delays.append(restart_delay(ends, clock, LIMITS))
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_one_end_more_than_the_limit_within_the_window_gives_up() -> None:
    ends = [float(second) for second in range(7)]
    assert restart_delay(ends[:6], 5.0, LIMITS) is not None
    assert restart_delay(ends, 6.0, LIMITS) is None


def test_ends_older_than_the_window_are_forgiven() -> None:
    ends = [float(second) for second in range(6)] + [100.0]
    assert restart_delay(ends, 100.0, LIMITS) == 0.1


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=2_000))
def test_a_delay_is_never_below_the_first_nor_above_the_longest(times: list[float]) -> None:
    ends = sorted(times)
    delay = restart_delay(ends, ends[-1], RestartLimits(max_restarts=10_000))
    assert delay is not None
    assert 0.1 <= delay <= 5.0


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=50), st.floats(0, 1e4))
def test_waiting_longer_never_turns_a_restart_into_giving_up(times: list[float], more: float) -> None:
    ends = sorted(times)
    if restart_delay(ends, ends[-1], LIMITS) is not None:
        assert restart_delay(ends, ends[-1] + more, LIMITS) is not None
