from parlmesh.cli.screen.fleet_view import FleetView
from parlmesh.cli.screen.progress_line import plain_line
from parlmesh.v1.scheduler_service_pb2 import ACTOR_STATE_READY, Actor, GetStatisticsResponse
from parlmesh.v1.training_service_pb2 import TRAINING_STATE_RUNNING, Training, TrainingProgress


def test_what_holds_a_run_up_and_what_fails_are_shown() -> None:
    view = FleetView("one", serial=True)
    progress = TrainingProgress(steps=1, failed_rollouts=2, last_failure="ValueError: x")
    view.learn(Training(run_id="one", progress=progress, obstacle="the disk is full"))
    line = plain_line(view, 1.0)
    assert "failed 2 rollouts; the last one: ValueError: x" in line
    assert "obstacle: the disk is full" in line


def test_a_plain_line_has_every_figure() -> None:
    view = FleetView("one", expected_actors=2, supervised=True, restarts=lambda: 3)
    progress = TrainingProgress(
        steps=1_000_000,
        step_budget=1_000,
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
    view.learn(Training(run_id="one", state=TRAINING_STATE_RUNNING, progress=progress))
    view.statistics = GetStatisticsResponse(queued_tasks=4)
    view.actors = (Actor(state=ACTOR_STATE_READY),)
    assert plain_line(view, 75.0) == (
        " 1:15  running  steps 1,000,000/1,000  24,310/s  return 312.4  evaluation 401.0 / goal 475  version 87"
        "  lag 0.4 (max 2)  waiting 25% learner, 62% actors  queued 5 trajectories, 4 tasks  actors 1/2  restarts 3"
    )


def test_a_serial_line_speaks_of_no_actors() -> None:
    assert plain_line(FleetView("one", serial=True, phase="starting"), 1.0) == " 0:01  starting"
