import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.bench.ours.training.curve import Mark, held_version, marks, seconds_until, steps_per_second

UPDATES = [Mark(1, 2000, 100.0), Mark(2, 4000, 100.5), Mark(3, 6000, 101.0)]


def test_only_lines_of_updates_are_marks() -> None:
    lines = [
        {"time": 9.5, "step": 2048, "policy/version": 2.0, "run/elapsed_seconds": 1.5},
        {"time": 1.6, "step": 2048, "return/evaluation": 20.0},
    ]
    assert marks(lines) == [Mark(2, 2048, 1.5)]


def test_the_rate_is_that_between_the_first_and_the_last_update() -> None:
    assert steps_per_second(UPDATES) == 4000.0


def test_a_rate_of_one_update_is_refused() -> None:
    with pytest.raises(ValueError, match="two updates"):
        steps_per_second(UPDATES[:1])


@given(st.integers(0, 2))
def test_the_first_update_counts_as_long_as_the_others(index: int) -> None:
    assert seconds_until(UPDATES, UPDATES[index]) == pytest.approx(0.5 * (index + 1))


def test_a_goal_is_held_from_the_first_of_enough_evaluations_in_a_row() -> None:
    lucky = [(10, 480.0), (20, 200.0), (30, 475.0), (40, 500.0), (50, 490.0)]
    assert held_version(lucky, 475.0, 3) == 30
    assert held_version(lucky[:-1], 475.0, 3) is None


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 4))
def test_holding_agrees_with_a_slow_look(passes: list[bool], in_a_row: int) -> None:
    evaluations = [(version, 500.0 if good else 0.0) for version, good in enumerate(passes)]
    slow = [start for start in range(len(passes) - in_a_row + 1) if all(passes[start : start + in_a_row])]
    assert held_version(evaluations, 475.0, in_a_row) == (slow[0] if slow else None)
