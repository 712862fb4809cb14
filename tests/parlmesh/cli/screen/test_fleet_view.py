import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.cli.screen.fleet_view import FleetView, clock, plain_line, sparkline
from parlmesh.v1.scheduler_service_pb2 import (
    ACTOR_STATE_LOST,
    ACTOR_STATE_PAUSED,
    ACTOR_STATE_READY,
    Actor,
    GetStatisticsResponse,
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


def test_what_holds_a_run_up_what_fails_and_what_would_help_are_shown() -> None:
    view = FleetView("one", serial=True)
    progress = TrainingProgress(steps=1, failed_rollouts=2, last_failure="ValueError: x")
    training = Training(run_id="one", progress=progress, obstacle="the disk is full", notes=["3 actors are idle"])
    view.learn(training)
    view.learn(training)
    line = plain_line(view, 1.0)
    assert "failed 2 rollouts; the last one: ValueError: x" in line
    assert "held up: the disk is full" in line
    assert list(view.notes) == ["3 actors are idle"]


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


def test_a_plain_line_has_every_figure() -> None:
    view = FleetView("one", expected_actors=2, supervised=True, restarts=lambda: 3)
    view.learn(
        training(
            1_000_000,
            steps_per_second=24_310.4,
            episode_return=312.44,
            evaluation_return=401,
            goal_return=475,
            policy_version=87,
            policy_lag=0.43,
            max_policy_lag_seen=2,
            queued_trajectories=5,
            learner_idle_ratio=0.25,
            actor_idle_ratio=0.621,
        )
    )
    view.statistics = GetStatisticsResponse(queued_tasks=4)
    view.actors = (Actor(state=ACTOR_STATE_READY),)
    assert plain_line(view, 75.0) == (
        " 1:15  running  steps 1,000,000/1,000  24,310/s  return 312.4  evaluation 401.0 / goal 475  version 87"
        "  lag 0.4 (max 2)  waiting 25% learner, 62% actors  queued 5 trajectories, 4 tasks  actors 1/2  restarts 3"
    )


def test_a_serial_line_speaks_of_no_actors() -> None:
    assert plain_line(FleetView("one", serial=True, phase="starting"), 1.0) == " 0:01  starting"


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
