import io

from rich.console import Console

from parlmesh.cli.screen.fleet_view import FleetView
from parlmesh.cli.screen.live_table import WIDTH, render
from parlmesh.v1.scheduler_service_pb2 import ACTOR_STATE_READY, Actor, GetStatisticsResponse
from parlmesh.v1.training_service_pb2 import TRAINING_STATE_RUNNING, Training, TrainingProgress


def drawn(view: FleetView, width: int = 120) -> str:
    output = io.StringIO()
    Console(file=output, width=width, highlight=False).print(render(view, 12.0))
    return output.getvalue()


def full_view() -> FleetView:
    view = FleetView("cartpole-1", expected_actors=2, supervised=True, restarts=lambda: 1)
    progress = TrainingProgress(
        steps=241_664,
        step_budget=300_000,
        steps_per_second=24_310,
        episode_return=323.4,
        evaluation_return=381.2,
        goal_return=475,
        policy_version=59,
        policy_lag=0.43,
        max_policy_lag_seen=2,
        queued_trajectories=6,
    )
    view.learn(Training(run_id="cartpole-1", state=TRAINING_STATE_RUNNING, progress=progress))
    view.statistics = GetStatisticsResponse(queued_tasks=3, running_tasks=2)
    view.actors = (Actor(state=ACTOR_STATE_READY),)
    view.note("06:23:12  actor-1 ended (signal 9)")
    return view


def test_the_table_shows_every_figure_of_the_fleet() -> None:
    text = drawn(full_view())
    for figure in (
        "cartpole-1",
        "running",
        "0:12",
        "241,664 / 300,000",
        "24,310/s",
        "323.4",
        "381.2 / goal 475",
        "version 59",
        "lag 0.4 mean, 2 max",
        "6 trajectories",
        "3 tasks, 2 running",
        "1 / 2 ready",
        "1 restart",
        "actor-1 ended (signal 9)",
    ):
        assert figure in text


def test_the_table_has_the_same_size_whatever_the_figures() -> None:
    small = FleetView("cartpole-1", expected_actors=2, supervised=True)
    small.learn(Training(state=TRAINING_STATE_RUNNING))
    small.note("x")
    big = full_view()
    assert big.training is not None
    big.training.progress.steps = 2_000_000_000
    big.training.progress.step_budget = 2_000_000_000
    assert len(drawn(small).splitlines()) == len(drawn(big).splitlines())


def test_no_line_is_wider_than_the_table() -> None:
    view = full_view()
    view.note("a very long note " * 20)
    assert max(len(line) for line in drawn(view).splitlines()) == WIDTH


def test_a_narrow_terminal_is_not_overrun() -> None:
    assert max(len(line) for line in drawn(full_view(), width=60).splitlines()) <= 60


def test_before_the_learner_speaks_the_table_says_so() -> None:
    text = drawn(FleetView("one", expected_actors=2))
    assert "waiting for the learner" in text
    assert "0 / 2 ready" in text


def test_a_serial_run_has_no_queues_and_no_actors() -> None:
    text = drawn(FleetView("one", serial=True, supervised=True))
    assert "queues" not in text
    assert "one process, no actors" in text
