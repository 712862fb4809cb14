import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.cli.screen.fleet_view import FleetView, clock, sparkline
from parlmesh.v1.scheduler_service_pb2 import (
    ACTOR_STATE_LOST,
    ACTOR_STATE_PAUSED,
    ACTOR_STATE_READY,
    Actor,
)
from parlmesh.v1.training_service_pb2 import (
    TRAINING_STATE_FAILED,
    TRAINING_STATE_FINISHED,
    TRAINING_STATE_PAUSED,
    TRAINING_STATE_RUNNING,
    TRAINING_STATE_STOPPED,
    Training,
    TrainingProgress,
)


def training(steps: int = 0, **fields: float) -> Training:
    progress = TrainingProgress(steps=steps, step_budget=1_000, **fields)  # type: ignore[arg-type]
    return Training(run_id="one", state=TRAINING_STATE_RUNNING, progress=progress)


def test_only_final_states_end_a_view() -> None:
    ended = set()
    for state in (
        TRAINING_STATE_RUNNING,
        TRAINING_STATE_PAUSED,
        TRAINING_STATE_FINISHED,
        TRAINING_STATE_STOPPED,
        TRAINING_STATE_FAILED,
    ):
        view = FleetView("one")
        view.learn(Training(state=state))
        if view.ended:
            ended.add(state)
    assert ended == {TRAINING_STATE_FINISHED, TRAINING_STATE_STOPPED, TRAINING_STATE_FAILED}


def test_the_curve_gets_one_point_per_progress_and_none_without_an_episode() -> None:
    view = FleetView("one")
    view.learn(training(0))
    view.learn(training(10, episode_return=5.0))
    view.learn(training(10, episode_return=5.0))
    view.learn(training(20, episode_return=7.0))
    assert list(view.returns) == [5.0, 7.0]


def test_actors_are_counted_by_state_and_against_the_number_asked_for() -> None:
    states = (ACTOR_STATE_READY, ACTOR_STATE_READY, ACTOR_STATE_PAUSED, ACTOR_STATE_LOST)
    view = FleetView("one", actors=tuple(Actor(state=state) for state in states))
    assert (view.ready_actors, view.total_actors) == (2, 3)
    view.expected_actors = 8
    assert view.total_actors == 8


def test_what_would_help_is_noted_once() -> None:
    view = FleetView("one")
    for _ in range(2):
        view.learn(Training(notes=["3 actors are idle"]))
    assert list(view.notes) == ["3 actors are idle"]


def test_notes_are_bounded_and_all_counted() -> None:
    view = FleetView("one")
    for index in range(10):
        view.note(str(index))
    assert (list(view.notes), view.told) == (["6", "7", "8", "9"], 10)


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3_661, "1:01:01")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=300), st.integers(1, 40))
def test_a_sparkline_is_never_longer_than_asked_and_touches_both_ends(values: list[float], points: int) -> None:
    line = sparkline(values, points)
    assert len(line) == min(points, len(values))
    assert set(line) <= set("▁▂▃▄▅▆▇█")
    if len(values) <= points and max(values) - min(values) > 1e-3:
        assert line[values.index(max(values))] == "█"
        assert line[values.index(min(values))] == "▁"


def test_a_rising_curve_rises() -> None:
    assert sparkline([float(value) for value in range(8)], 8) == "▁▂▃▄▅▆▇█"
